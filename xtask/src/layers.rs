//! Crates depend on lower layers only, and siblings do not import each other.

use std::collections::BTreeMap;
use std::path::Path;

use anyhow::{Context, Result};
use toml::{Table, Value};

/// For each folder of `crates/`, lowest first, the folders it may depend on.
///
/// A crate may name only crates above its own line. Tests (`[dev-dependencies]`) are free.
const ALLOWED: &[(&str, &[&str])] = &[
    ("base", &[]),
    ("handover", &[]),
    ("observe", &["base"]),
    ("wire", &["base"]),
    ("cc", &["base"]),
    ("policy", &["base", "cc"]),
    ("programs", &["base", "cc"]),
    ("kernel", &["base", "policy"]),
    ("netem", &["base"]),
    ("verbs", &["base"]),
    ("iwarp", &["base", "verbs"]),
    ("transport", &["base", "wire", "cc"]),
    ("endpoint", &["base", "observe", "wire", "cc", "verbs", "transport", "iwarp"]),
    ("io", &["base", "handover", "wire", "cc", "netem", "verbs", "transport", "iwarp", "endpoint"]),
    ("engine", &["base", "handover", "wire", "verbs", "transport", "endpoint", "io"]),
    ("sim", &["base", "wire", "cc", "netem", "verbs", "transport", "iwarp", "endpoint"]),
    ("mover", &["base", "observe", "wire", "cc", "verbs", "transport", "iwarp", "endpoint", "io"]),
    ("admin", &["base", "observe", "cc", "policy", "endpoint", "io"]),
    (
        "lab",
        &[
            "base",
            "wire",
            "cc",
            "policy",
            "programs",
            "kernel",
            "netem",
            "verbs",
            "transport",
            "iwarp",
            "endpoint",
            "io",
            "sim",
            "mover",
        ],
    ),
    (
        "cli",
        &[
            "base",
            "observe",
            "wire",
            "cc",
            "policy",
            "programs",
            "kernel",
            "netem",
            "verbs",
            "transport",
            "iwarp",
            "endpoint",
            "engine",
            "io",
            "sim",
            "mover",
            "admin",
            "lab",
        ],
    ),
];

/// Breaches of the layer order under `root`, one text each.
///
/// # Errors
/// When a manifest cannot be read or is not valid TOML.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let ours = our_names(&read_manifest(&root.join("Cargo.toml"))?);
    let mut breaches = Vec::new();
    let mut seen = Vec::new();
    let folder = root.join("crates");
    for entry in std::fs::read_dir(&folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let path = entry?.path();
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { continue };
        if path.join("Cargo.toml").exists() {
            breaches.extend(check_crate(name, &read_manifest(&path.join("Cargo.toml"))?, &ours));
            seen.push(name.to_owned());
        }
    }
    for (name, _) in ALLOWED.iter().filter(|(name, _)| !seen.iter().any(|seen| seen == name)) {
        breaches.push(format!(
            "crates/{name} is in the table of layers (xtask/src/layers.rs) but does not exist"
        ));
    }
    breaches.sort();
    Ok(breaches)
}

fn read_manifest(path: &Path) -> Result<Table> {
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    text.parse().with_context(|| format!("{} is not valid TOML", path.display()))
}

/// Every name by which a dependency can mean a crate of ours (its short name in the workspace, its package name) and
/// the folder it means.
fn our_names(workspace: &Table) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let dependencies =
        workspace.get("workspace").and_then(|table| table.get("dependencies")).and_then(Value::as_table);
    for (name, value) in dependencies.into_iter().flatten() {
        let Some(folder) = value.get("path").and_then(Value::as_str).and_then(folder_of) else { continue };
        names.insert(name.clone(), folder.clone());
        if let Some(package) = value.get("package").and_then(Value::as_str) {
            names.insert(package.to_owned(), folder);
        }
    }
    names
}

fn folder_of(path: &str) -> Option<String> {
    Path::new(path).file_name().and_then(|name| name.to_str()).map(str::to_owned)
}

fn check_crate(folder: &str, manifest: &Table, ours: &BTreeMap<String, String>) -> Vec<String> {
    let Some((_, allowed)) = ALLOWED.iter().find(|(name, _)| *name == folder) else {
        return vec![format!("crates/{folder} has no line in the table of layers (xtask/src/layers.rs)")];
    };
    let mut breaches = Vec::new();
    for (name, value) in dependencies(manifest) {
        let inherited = value.get("workspace").is_some();
        let package = value.get("package").and_then(Value::as_str).unwrap_or(name);
        let by_path = value.get("path").and_then(Value::as_str).filter(|_| !inherited).and_then(folder_of);
        let Some(target) = by_path.or_else(|| ours.get(package).cloned()) else { continue };
        if !allowed.contains(&target.as_str()) {
            let list = if allowed.is_empty() { "nothing of ours".to_owned() } else { allowed.join(", ") };
            breaches.push(format!("crates/{folder} must not depend on crates/{target}: it may use {list}"));
        }
    }
    breaches
}

/// The entries of `[dependencies]` and `[build-dependencies]`, for all targets and for particular ones.
fn dependencies(manifest: &Table) -> impl Iterator<Item = (&String, &Value)> {
    let targets = manifest.get("target").and_then(Value::as_table).into_iter().flatten();
    let tables = targets.filter_map(|(_, value)| value.as_table()).chain([manifest]);
    tables
        .flat_map(|table| {
            ["dependencies", "build-dependencies"].map(|key| table.get(key).and_then(Value::as_table))
        })
        .flatten()
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn breaches(folder: &str, manifest: &str) -> Vec<String> {
        let workspace = r#"
            [workspace.dependencies]
            cc = { package = "longhaul-cc", path = "crates/cc" }
            lhio = { package = "longhaul-io", path = "crates/io" }
            thiserror = "2"
        "#;
        check_crate(folder, &manifest.parse().unwrap(), &our_names(&workspace.parse().unwrap()))
    }

    #[test]
    fn layer_uses_only_layers_above() {
        for (index, (name, allowed)) in ALLOWED.iter().enumerate() {
            for target in *allowed {
                assert!(ALLOWED[..index].iter().any(|(lower, _)| lower == target), "{name} names {target}");
            }
        }
    }

    #[test]
    fn lower_layers_and_foreign_crates_are_allowed() {
        let manifest = "[dependencies]\ncc.workspace = true\nthiserror.workspace = true\nio = \"1\"";
        assert_eq!(breaches("transport", manifest), Vec::<String>::new());
    }

    #[test]
    fn higher_layers_are_refused_under_any_name() {
        for manifest in [
            "[dependencies]\nlhio.workspace = true",
            "[dependencies.lhio]\nworkspace = true",
            "[build-dependencies]\nx = { package = \"longhaul-io\", version = \"1\" }",
            "[target.'cfg(unix)'.dependencies]\nx = { path = \"../io\" }",
        ] {
            assert_eq!(breaches("transport", manifest).len(), 1, "{manifest}");
        }
    }

    #[test]
    fn siblings_are_refused_except_in_tests() {
        assert_eq!(breaches("verbs", "[dependencies]\ncc.workspace = true").len(), 1);
        assert_eq!(breaches("verbs", "[dev-dependencies]\ncc.workspace = true").len(), 0);
    }

    #[test]
    fn crate_without_a_layer_is_refused() {
        assert_eq!(breaches("novel", "[package]").len(), 1);
    }
}
