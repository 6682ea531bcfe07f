//! The documents as a site, by mdBook, and a check that no link in them is dead.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::process::{self, command, run};
use crate::tools::CargoTool;

const MDBOOK: CargoTool = CargoTool { name: "mdbook", version: "0.5.4" };

/// Documents beside `docs/`, which the site leaves out.
const AT_THE_ROOT: [&str; 4] = ["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md"];

/// Builds the site into `target/book`. A link that leads nowhere is an error, on the site as in the repository.
pub fn build() -> Result<()> {
    let root = process::root();
    let site = process::target_dir().join("book");
    run(command(&MDBOOK.path()?).arg("build").arg(root.join("docs")).arg("--dest-dir").arg(&site))?;
    let mut dead = dead_links(&site)?;
    dead.extend(dead_in_repository(&root)?);
    for link in &dead {
        println!("book: dead link: {link}");
    }
    ensure!(dead.is_empty(), "{} links lead nowhere", dead.len());
    println!("book: {} has no dead link", site.join("index.html").display());
    Ok(())
}

/// Links of the documents in the repository that name a file which is not there.
fn dead_in_repository(root: &Path) -> Result<Vec<String>> {
    let mut documents: Vec<PathBuf> = AT_THE_ROOT.iter().map(|name| root.join(name)).collect();
    documents.extend(files_below(&root.join("docs"), "md")?);
    let mut dead = Vec::new();
    for document in documents {
        let text = read(&document)?;
        let folder = document.parent().unwrap_or(root);
        for link in markdown_links(&text) {
            let file = link.split('#').next().unwrap_or_default();
            if is_local(link) && !file.is_empty() && !folder.join(file).exists() {
                dead.push(format!("{}: {link}", document.display()));
            }
        }
    }
    Ok(dead)
}

/// Links of the site that name a page, a file or an anchor which is not there.
fn dead_links(site: &Path) -> Result<Vec<String>> {
    let mut pages = BTreeMap::new();
    for page in files_below(site, "html")? {
        pages.insert(page.clone(), read(&page)?);
    }
    let anchors: BTreeMap<&PathBuf, BTreeSet<&str>> =
        pages.iter().map(|(page, text)| (page, attributes(text, "id").collect())).collect();
    let mut dead = Vec::new();
    for (page, text) in &pages {
        // The page for what is not found is shown under any address, and the one for printing repeats the others.
        if page.ends_with("404.html") || page.ends_with("print.html") || page.ends_with("toc.html") {
            continue;
        }
        for link in attributes(text, "href").chain(attributes(text, "src")).filter(|link| is_local(link)) {
            let (file, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { page.clone() } else { resolved(page, file) };
            let is_there = match anchors.get(&target) {
                Some(known) => anchor.is_empty() || known.contains(anchor),
                None => target.exists(),
            };
            if !is_there {
                dead.push(format!("{}: {link}", page.display()));
            }
        }
    }
    Ok(dead)
}

/// A link to something of this repository.
fn is_local(link: &str) -> bool {
    !link.contains("://")
        && !link.starts_with("mailto:")
        && !link.starts_with("data:")
        && !link.starts_with("javascript:")
}

/// A relative link of a page, with `.` and `..` worked off.
fn resolved(page: &Path, link: &str) -> PathBuf {
    let mut path = page.parent().unwrap_or(Path::new("")).to_owned();
    for part in Path::new(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

/// The values of an attribute in a page.
fn attributes<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let opening = format!(" {name}=\"");
    let starts: Vec<usize> = text.match_indices(&opening).map(|(at, found)| at + found.len()).collect();
    starts.into_iter().filter_map(|at| text[at..].split('"').next())
}

/// Targets of the links and pictures of a document, outside fenced code.
fn markdown_links(text: &str) -> Vec<&str> {
    let mut links = Vec::new();
    let mut in_code = false;
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            in_code = !in_code;
        } else if !in_code {
            links.extend(
                line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link),
            );
        }
    }
    links
}

fn files_below(folder: &Path, extension: &str) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            found.extend(files_below(&path, extension)?);
        } else if path.extension().is_some_and(|e| e == extension) {
            found.push(path);
        }
    }
    found.sort();
    Ok(found)
}

fn read(path: &Path) -> Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::{attributes, dead_links, is_local, markdown_links, resolved};
    use std::path::Path;

    #[test]
    fn links_of_documents_are_found_outside_code() {
        let text = "a [b](c.md#d) and ![e](f.svg)\n```\n[not](this)\n```\n[g](https://h)\n";
        assert_eq!(markdown_links(text), ["c.md#d", "f.svg", "https://h"]);
        assert!(is_local("c.md#d") && !is_local("https://h") && !is_local("mailto:a@b"));
    }

    #[test]
    fn relative_links_are_resolved() {
        assert_eq!(resolved(Path::new("/s/guides/a.html"), "../b.html"), Path::new("/s/b.html"));
        assert_eq!(resolved(Path::new("/s/a.html"), "./guides/b.html"), Path::new("/s/guides/b.html"));
    }

    #[test]
    fn dead_pages_and_anchors_are_named() {
        let site = std::env::temp_dir().join(format!("longhaul-book-{}", std::process::id()));
        std::fs::create_dir_all(&site).expect("a folder");
        let page =
            r##"<h2 id="here"></h2><a href="#here">1</a><a href="b.html#gone">2</a><a href="c.html">3</a>"##;
        std::fs::write(site.join("a.html"), page).expect("a page");
        std::fs::write(site.join("b.html"), "<p id=\"there\">").expect("a page");
        let dead = dead_links(&site).expect("a readable site");
        std::fs::remove_dir_all(&site).expect("it can be removed");
        assert_eq!(
            dead.iter().map(|d| d.rsplit(' ').next().unwrap_or("")).collect::<Vec<_>>(),
            ["b.html#gone", "c.html"]
        );
        assert_eq!(attributes("<a href=\"x\" href=\"y\">", "href").collect::<Vec<_>>(), ["x", "y"]);
    }
}
