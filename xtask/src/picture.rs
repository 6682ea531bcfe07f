//! `cargo xtask picture`: what `longhaul demo` prints, drawn as a terminal in SVG, for the README.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};

use crate::process::{cargo, command, output, root, run, target_dir};

/// Where the picture goes, below the root.
const PICTURE: &str = "docs/images/demo.svg";
/// The command whose output is drawn.
const COMMAND: &str = "longhaul demo";
/// Columns of the terminal; longer lines go on in the next one.
const COLUMNS: usize = 100;
/// Size of the font, advance of a character and height of a line, in pixels.
const FONT: f64 = 13.0;
const ADVANCE: f64 = 7.8;
const LINE: f64 = 18.0;
/// Room around the text, and the height of the title bar.
const MARGIN: f64 = 16.0;
const TITLE: f64 = 32.0;
/// Characters before the value in a row of the demo's table: two spaces and a name of 24 characters.
const LABEL: usize = 26;

/// Runs the demo, with the options of `args`, and draws what it prints.
pub fn draw(args: &[String]) -> Result<()> {
    let printed = output(command(&program()?.to_string_lossy()).arg("demo").args(args))?;
    ensure!(!printed.trim().is_empty(), "`{COMMAND}` printed nothing");
    let options: String = args.iter().map(|a| format!(" {a}")).collect();
    let picture = svg(&format!("{COMMAND}{options}"), &printed);
    let file = root().join(PICTURE);
    let folder = file.parent().context("the picture has no folder")?;
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    std::fs::write(&file, picture).with_context(|| format!("cannot write {}", file.display()))?;
    println!("wrote {PICTURE}");
    Ok(())
}

/// The program as it was built for release, or else one that is built for it without optimisation.
fn program() -> Result<PathBuf> {
    let built = |profile: &str| target_dir().join(profile).join("longhaul");
    if !built("release").exists() {
        run(cargo().args(["build", "--quiet", "-p", "longhaul"]))?;
        return Ok(built("debug"));
    }
    Ok(built("release"))
}

/// How a piece of a line is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Look {
    Plain,
    Prompt,
    Label,
    Success,
}

impl Look {
    fn class(self) -> &'static str {
        match self {
            Look::Plain => "t",
            Look::Prompt => "p",
            Look::Label => "l",
            Look::Success => "s",
        }
    }
}

/// Pieces of a line with the columns in which they begin.
fn pieces(line: &str) -> Vec<(usize, Look, String)> {
    if let Some(rest) = line.strip_prefix("$ ") {
        return vec![(0, Look::Prompt, "$".to_owned()), (2, Look::Plain, rest.to_owned())];
    }
    let look = if line.starts_with("verified") { Look::Success } else { Look::Plain };
    let is_row = line.starts_with("  ") && line.chars().count() > LABEL && !line.trim().is_empty();
    if !is_row {
        return vec![(0, look, line.to_owned())];
    }
    let (label, value): (String, String) =
        (line.chars().take(LABEL).collect(), line.chars().skip(LABEL).collect());
    vec![(2, Look::Label, label.trim().to_owned()), (LABEL, Look::Plain, value)]
}

/// The lines of a terminal of [`COLUMNS`] columns; what does not fit into one goes on in the next, as far in as the
/// value of a row stands.
fn wrapped(text: &str) -> Vec<String> {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = if line.starts_with("  ") { LABEL } else { 0 };
        let mut rest: Vec<char> = line.trim_end().chars().collect();
        while rest.len() > COLUMNS {
            let space = rest[..=COLUMNS].iter().rposition(|c| *c == ' ').filter(|at| *at > indent);
            let at = space.unwrap_or(COLUMNS);
            lines.push(rest[..at].iter().collect::<String>());
            let behind = rest[at..].iter().skip_while(|c| **c == ' ');
            rest = std::iter::repeat_n(' ', indent).chain(behind.copied().collect::<Vec<_>>()).collect();
        }
        lines.push(rest.into_iter().collect());
    }
    lines
}

/// The picture: a dark terminal with a border, which reads well on light and on dark pages.
fn svg(typed: &str, printed: &str) -> String {
    let lines = wrapped(&format!("$ {typed}\n{}", printed.trim_end()));
    let width = COLUMNS as f64 * ADVANCE + 2.0 * MARGIN;
    let height = lines.len() as f64 * LINE + TITLE + 2.0 * MARGIN;
    let mut out = format!(
        r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0} {height:.0}" width="{width:.0}" height="{height:.0}" role="img" aria-label="Output of {label}">
<style>
text {{ font: {FONT}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace; white-space: pre }}
.t {{ fill: #e6edf3 }}
.p {{ fill: #79c0ff }}
.l {{ fill: #9da7b3 }}
.s {{ fill: #56d364 }}
</style>
<rect x="0.5" y="0.5" width="{inner_width:.0}" height="{inner_height:.0}" rx="8" fill="#0d1117" stroke="#6e7681"/>
<circle cx="20" cy="18" r="5.5" fill="#ff5f57"/>
<circle cx="40" cy="18" r="5.5" fill="#febc2e"/>
<circle cx="60" cy="18" r="5.5" fill="#28c840"/>
"##,
        label = escaped(typed),
        inner_width = width - 1.0,
        inner_height = height - 1.0,
    );
    for (n, line) in lines.iter().enumerate() {
        let y = TITLE + MARGIN + n as f64 * LINE + FONT / 2.0;
        for (column, look, text) in pieces(line).into_iter().filter(|p| !p.2.trim().is_empty()) {
            let indent = text.chars().take_while(|c| *c == ' ').count();
            let text = text.trim();
            let (x, length) =
                (MARGIN + (column + indent) as f64 * ADVANCE, text.chars().count() as f64 * ADVANCE);
            // Whatever font there is, columns stay where they are.
            out.push_str(&format!(
                "<text class=\"{}\" x=\"{x:.1}\" y=\"{y:.1}\" textLength=\"{length:.1}\">{}</text>\n",
                look.class(),
                escaped(text)
            ));
        }
    }
    out.push_str("</svg>\n");
    out
}

/// As text of XML.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '&' => "&amp;".to_owned(),
        '<' => "&lt;".to_owned(),
        '>' => "&gt;".to_owned(),
        '"' => "&quot;".to_owned(),
        c if c.is_control() => String::new(),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRINTED: &str = "creating 1 MiB (seed 1)\n\n  goodput                 480.1 Mbit/s <a> & b\n\nverified: both trees are identical\n";

    #[test]
    fn picture_has_every_line_escaped_and_in_its_colour() {
        let svg = svg("longhaul demo", PRINTED);
        for text in [
            ">$</text>",
            ">longhaul demo</text>",
            "class=\"l\" x=\"31.6\"",
            ">goodput</text>",
            ">480.1 Mbit/s &lt;a&gt; &amp; b</text>",
            "class=\"s\"",
            ">verified: both trees are identical</text>",
        ] {
            assert!(svg.contains(text), "{text}: {svg}");
        }
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn long_lines_wrap_beneath_their_value() {
        let row = format!("  {:<24}{}", "lost", "word ".repeat(30));
        let lines = wrapped(&row);
        assert!(lines.len() == 2 && lines.iter().all(|l| l.chars().count() <= COLUMNS), "{lines:#?}");
        assert!(lines[1].starts_with(&format!("{}word", " ".repeat(LABEL))), "{lines:#?}");
        let unbroken = wrapped(&"x".repeat(COLUMNS + 1));
        assert_eq!(unbroken, ["x".repeat(COLUMNS), "x".to_owned()]);
        assert_eq!(pieces(&lines[1])[1].0, LABEL);
    }

    #[test]
    fn readme_links_an_existing_picture() {
        let root = root();
        let readme = std::fs::read_to_string(root.join("README.md")).unwrap();
        assert!(readme.contains(PICTURE) && root.join(PICTURE).exists());
    }
}
