//! The names of our algorithms in the kernel's TCP.

use super::is_built_in;

/// The names that the kernel's TCP may use for an algorithm, in order of preference; the first available one is
/// meant. A program shipped with Longhaul has the name of the built-in algorithm that it reimplements, also in the
/// kernel unless the kernel has an algorithm of that name; otherwise, and next to the built-in one, the suffix `_c`
/// (`-c`) is added. The last name is the one to load if the kernel has none.
pub fn kernel_names(spec: &str) -> Vec<String> {
    // Names in the kernel have no dashes (`bpf_obj_name_cpy`).
    let name = spec.split(':').next().unwrap_or_default().trim().replace('-', "_");
    let plain = name.strip_suffix("_c").unwrap_or(&name);
    if is_built_in(plain) { vec![format!("{plain}_c"), plain.to_owned()] } else { vec![name] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_their_built_in_twins_have_the_same_kernel_names() {
        for spec in ["dctcp", "dctcp-c", "dctcp_c", " dctcp:x=1"] {
            assert_eq!(kernel_names(spec), ["dctcp_c", "dctcp"], "{spec}");
        }
        assert_eq!(kernel_names("my-own:gain=1"), ["my_own"]);
        assert_eq!(kernel_names("magic-c"), ["magic_c"]);
    }
}
