//! What the kernel's TCP calls our algorithms.

use super::is_built_in;

/// Names by which the kernel's TCP may know an algorithm, in the order of preference: the first that it has is meant. A
/// program that comes with Longhaul is called like the built-in algorithm that it decides as, and in the kernel so, too,
/// unless that has one of this name itself; then, and beside the built-in one, with `_c` (`-c`) behind it. The last is the name
/// for what the kernel does not have yet.
pub fn kernel_names(spec: &str) -> Vec<String> {
    // No name there has a dash (`bpf_obj_name_cpy`).
    let name = spec.split(':').next().unwrap_or_default().trim().replace('-', "_");
    let plain = name.strip_suffix("_c").unwrap_or(&name);
    if is_built_in(plain) { vec![format!("{plain}_c"), plain.to_owned()] } else { vec![name] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_and_the_algorithm_that_it_decides_as_have_the_same_names() {
        for spec in ["dctcp", "dctcp-c", "dctcp_c", " dctcp:x=1"] {
            assert_eq!(kernel_names(spec), ["dctcp_c", "dctcp"], "{spec}");
        }
        assert_eq!(kernel_names("my-own:gain=1"), ["my_own"]);
        assert_eq!(kernel_names("magic-c"), ["magic_c"]);
    }
}
