//! Extracts the commands that the README shows, which CI runs.

use anyhow::{Context, Result, bail};

/// The code block of `text` that follows the line `<!-- mark -->`, verbatim.
///
/// Between the mark and the opening fence only blank lines may stand.
pub fn block(text: &str, mark: &str) -> Result<String> {
    let mark = format!("<!-- {mark} -->");
    let mut lines =
        text.lines().skip_while(|line| line.trim() != mark).skip(1).skip_while(|line| line.trim().is_empty());
    let fence = lines.next().with_context(|| format!("README.md has no block marked {mark}"))?;
    if !fence.trim().starts_with("```") {
        bail!("README.md: {mark} must be followed by a code fence, not by `{fence}`");
    }
    let mut code = Vec::new();
    for line in lines {
        if line.trim() == "```" {
            if code.iter().all(|line: &&str| line.trim().is_empty()) {
                bail!("README.md: the block marked {mark} is empty");
            }
            return Ok(code.join("\n"));
        }
        code.push(line);
    }
    bail!("README.md: the block marked {mark} is never closed")
}

#[cfg(test)]
mod tests {
    use super::block;

    #[test]
    fn marked_blocks_are_found_verbatim() {
        let text = "# T\n```\nother\n```\n<!-- main -->\n\n```sh\na  b\nc\n```\n<!-- test -->\n```\nd\n```\n";
        assert_eq!(block(text, "main").unwrap(), "a  b\nc");
        assert_eq!(block(text, "test").unwrap(), "d");
    }

    #[test]
    fn absent_empty_and_open_blocks_are_refused() {
        for bad in ["", "<!-- x -->", "<!-- x -->\ntext", "<!-- x -->\n```\n```", "<!-- x -->\n```\nabc"] {
            assert!(block(bad, "x").is_err(), "{bad:?} was taken");
        }
    }
}
