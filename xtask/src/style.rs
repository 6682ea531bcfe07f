//! The style rules that a machine can check: sizes, leftovers, `unsafe`, and tests that do not run.
//!
//! Sources are read as token trees, so that strings, comments and the inside of macros are told apart as the compiler
//! does it. Exceptions stand in `xtask/style-allow.txt`, each with its reason; one that is no longer needed is itself
//! a breach, so the list only holds what is true.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

/// The most lines of a Rust file.
const MAX_FILE_LINES: usize = 800;
/// The most lines of a function, from `fn` to its closing brace.
const MAX_FN_LINES: usize = 70;
/// The folders and files whose code may be `unsafe`: system calls, and the memory access of verbs.
const MAY_BE_UNSAFE: &[&str] = &[
    "crates/base/src/prefetch.rs",
    "crates/engine/src/memory.rs",
    "crates/engine/tests/programs/mod.rs",
    "crates/handover/src/ring.rs",
    "crates/io/",
    "crates/verbs/",
    "crates/kernel/src/sys.rs",
    "crates/kernel/tests/rules.rs",
    "crates/lab/src/sys.rs",
    "crates/mover/tests/trouble.rs",
    "ffi/",
    "fuzz/",
];
/// Macros that mark unfinished work or a debugging session.
const LEFTOVERS: &[&str] = &["todo", "unimplemented", "dbg"];
/// Macros that panic where standard output or error cannot be written to: a closed pipe, a full disk.
const PANIC_ON_A_CLOSED_PIPE: &[&str] = &["print", "println", "eprint", "eprintln"];
/// Whose code is that of programs. What else prints are examples, tests and development tools.
const PROGRAMS: &[&str] = &["crates/cli/src/", "crates/lab/src/"];
/// The program of users, and the only file of it that knows of standard output and error: it escapes what others wrote.
const USERS: (&str, &str) = ("crates/cli/src/", "crates/cli/src/out.rs");
/// Where the exceptions stand.
const ALLOW_FILE: &str = "xtask/style-allow.txt";
/// The rules that have exceptions, as they are named in the list.
const FILE_LINES: &str = "file-lines";
const FN_LINES: &str = "fn-lines";
const IGNORED: &str = "ignored";

/// One breach, and the exception that would excuse it.
#[derive(Debug, PartialEq)]
struct Breach {
    /// The rule's name in the list of exceptions; `None` for a rule without exceptions.
    rule: Option<&'static str>,
    /// `path` or `path::function`.
    item: String,
    text: String,
}

/// Breaches of the style rules under `root`, one text each.
///
/// # Errors
/// When a file cannot be read, is not Rust, or the list of exceptions is not well formed.
pub fn check(root: &Path) -> Result<Vec<String>> {
    let mut files = Vec::new();
    rust_files(root, &mut files)?;
    files.sort();
    let mut breaches = Vec::new();
    for file in files {
        let path = file.strip_prefix(root)?.to_str().context("a file name is not valid Unicode")?;
        let text = std::fs::read_to_string(&file).with_context(|| format!("cannot read {path}"))?;
        breaches.extend(check_file(path, &text)?);
    }
    let list = root.join(ALLOW_FILE);
    let list = std::fs::read_to_string(&list).with_context(|| format!("cannot read {ALLOW_FILE}"))?;
    excuse(breaches, &list)
}

/// Collects the `.rs` files below `folder`, but for what is built, hidden or fetched.
fn rust_files(folder: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))? {
        let entry = entry?;
        let (path, name) = (entry.path(), entry.file_name());
        let name = name.to_string_lossy();
        if entry.file_type()?.is_dir() {
            if !name.starts_with('.') && !matches!(&*name, "target" | "corpus" | "artifacts" | "out") {
                rust_files(&path, files)?;
            }
        } else if name.ends_with(".rs") {
            files.push(path);
        }
    }
    Ok(())
}

/// Drops what the list excuses; adds the list's lines that excuse nothing.
fn excuse(mut breaches: Vec<Breach>, list: &str) -> Result<Vec<String>> {
    let mut surplus = Vec::new();
    for (index, line) in list.lines().enumerate() {
        if line.trim().is_empty() || line.starts_with('#') {
            continue;
        }
        let mut words = line.splitn(3, char::is_whitespace);
        let (rule, item, reason) = (words.next(), words.next(), words.next());
        let place = format!("{ALLOW_FILE}:{}", index + 1);
        let (Some(rule), Some(item), Some(_)) =
            (rule, item, reason.filter(|reason| !reason.trim().is_empty()))
        else {
            anyhow::bail!("{place}: a line is `RULE ITEM REASON`");
        };
        anyhow::ensure!(
            [FILE_LINES, FN_LINES, IGNORED].contains(&rule),
            "{place}: no rule is called `{rule}`"
        );
        let before = breaches.len();
        breaches.retain(|breach| breach.rule != Some(rule) || breach.item != item);
        if breaches.len() == before {
            surplus.push(format!("{place}: `{rule} {item}` excuses nothing any more; remove the line"));
        }
    }
    let texts = breaches.into_iter().map(|breach| match breach.rule {
        Some(rule) => format!("{} (rule {rule}, item {})", breach.text, breach.item),
        None => breach.text,
    });
    Ok(texts.chain(surplus).collect())
}

fn check_file(path: &str, text: &str) -> Result<Vec<Breach>> {
    let mut file = File { path, breaches: Vec::new() };
    let lines = text.lines().count();
    if lines > MAX_FILE_LINES {
        file.report(Some(FILE_LINES), None, 1, format!("{lines} lines; at most {MAX_FILE_LINES}"));
    }
    for (index, line) in text.lines().enumerate() {
        if is_ignored_example(line) {
            file.report(
                Some(IGNORED),
                None,
                index + 1,
                "an example in the documentation does not run".to_owned(),
            );
        }
    }
    let tokens: TokenStream = text.parse().map_err(|error| anyhow::anyhow!("{path} is not Rust: {error}"))?;
    file.walk(tokens);
    Ok(file.breaches)
}

/// Whether a line of a documentation comment opens a code block that rustdoc skips.
fn is_ignored_example(line: &str) -> bool {
    let line = line.trim_start();
    let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"));
    let fence = comment.and_then(|text| text.trim_start().strip_prefix("```"));
    fence.is_some_and(|words| words.split(',').any(|word| word.trim().starts_with("ignore")))
}

/// One source file on its way through the rules.
struct File<'a> {
    path: &'a str,
    breaches: Vec<Breach>,
}

impl File<'_> {
    fn report(&mut self, rule: Option<&'static str>, function: Option<&str>, line: usize, what: String) {
        let item = function.map_or_else(|| self.path.to_owned(), |name| format!("{}::{name}", self.path));
        self.breaches.push(Breach { rule, item, text: format!("{}:{line}: {what}", self.path) });
    }

    /// Goes through one level of the tree, then into each group.
    fn walk(&mut self, tokens: TokenStream) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        for (index, token) in tokens.iter().enumerate() {
            match token {
                TokenTree::Ident(ident) => {
                    let (name, line) = (ident.to_string(), ident.span().start().line);
                    self.word(&name, line, &tokens[index + 1..]);
                }
                TokenTree::Group(group) => {
                    if index > 0 && is_punct(&tokens[index - 1], '#') && is_ignore(group) {
                        let name = next_function(&tokens[index + 1..]);
                        let line = group.span_open().start().line;
                        self.report(Some(IGNORED), name.as_deref(), line, "a test does not run".to_owned());
                    }
                    self.walk(group.stream());
                }
                TokenTree::Punct(_) | TokenTree::Literal(_) => {}
            }
        }
    }

    /// Programs say everything by what neither panics nor steers a terminal.
    fn output(&mut self, name: &str, line: usize, rest: &[TokenTree]) {
        let is_macro = rest.first().is_some_and(|token| is_punct(token, '!'));
        if is_macro
            && PANIC_ON_A_CLOSED_PIPE.contains(&name)
            && PROGRAMS.iter().any(|p| self.path.starts_with(p))
        {
            self.report(None, None, line, format!("`{name}!` panics where its reader has gone"));
        }
        let is_call = matches!(rest.first(), Some(TokenTree::Group(group))
            if group.delimiter() == Delimiter::Parenthesis && group.stream().is_empty());
        if is_call
            && matches!(name, "stdout" | "stderr")
            && self.path.starts_with(USERS.0)
            && self.path != USERS.1
        {
            self.report(None, None, line, format!("`{name}()` belongs to {} only", USERS.1));
        }
    }

    /// A word of the code, and what follows it on its level.
    fn word(&mut self, name: &str, line: usize, rest: &[TokenTree]) {
        if name == "unsafe" && !MAY_BE_UNSAFE.iter().any(|folder| self.path.starts_with(folder)) {
            let folders = MAY_BE_UNSAFE.join(", ");
            self.report(None, None, line, format!("`unsafe` belongs to {folders} only"));
        }
        if LEFTOVERS.contains(&name) && rest.first().is_some_and(|token| is_punct(token, '!')) {
            self.report(None, None, line, format!("`{name}!` is unfinished work"));
        }
        self.output(name, line, rest);
        if name == "fn"
            && let [TokenTree::Ident(function), rest @ ..] = rest
            && let Some(body) = body(rest)
        {
            let lines = body.span_close().end().line - line + 1;
            if lines > MAX_FN_LINES {
                let function = function.to_string();
                let what = format!("`{function}` has {lines} lines; at most {MAX_FN_LINES}");
                self.report(Some(FN_LINES), Some(&function), line, what);
            }
        }
    }
}

fn is_punct(token: &TokenTree, wanted: char) -> bool {
    matches!(token, TokenTree::Punct(punct) if punct.as_char() == wanted)
}

/// The body of a function whose signature `tokens` continue; none for one that is only declared.
fn body(tokens: &[TokenTree]) -> Option<&Group> {
    for (index, token) in tokens.iter().enumerate() {
        match token {
            TokenTree::Punct(punct) if punct.as_char() == ';' => return None,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                // `Array<{ N }>`: a constant in a type, still the signature.
                let next = tokens.get(index + 1);
                if !next.is_some_and(|next| is_punct(next, '>') || is_punct(next, ',')) {
                    return Some(group);
                }
            }
            _ => {}
        }
    }
    None
}

/// Whether the inside of an attribute is `ignore`, or a `cfg_attr` that comes to it.
fn is_ignore(attribute: &Group) -> bool {
    let words: Vec<TokenTree> = attribute.stream().into_iter().collect();
    match words.as_slice() {
        [TokenTree::Ident(name), ..] if name == "ignore" => true,
        [TokenTree::Ident(name), TokenTree::Group(rest)] if name == "cfg_attr" => {
            rest.stream().into_iter().any(|token| matches!(token, TokenTree::Ident(word) if word == "ignore"))
        }
        _ => false,
    }
}

fn next_function(tokens: &[TokenTree]) -> Option<String> {
    tokens.windows(2).find_map(|pair| match pair {
        [TokenTree::Ident(keyword), TokenTree::Ident(name)] if keyword == "fn" => Some(name.to_string()),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(path: &str, text: &str) -> Vec<(Option<&'static str>, String)> {
        check_file(path, text).unwrap().into_iter().map(|breach| (breach.rule, breach.item)).collect()
    }

    fn function_of(lines: usize, signature: &str) -> String {
        format!("{signature} {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_files_and_functions_are_found_at_the_limit() {
        assert_eq!(found("a.rs", &"// x\n".repeat(MAX_FILE_LINES)), []);
        assert_eq!(
            found("a.rs", &"// x\n".repeat(MAX_FILE_LINES + 1)),
            [(Some(FILE_LINES), "a.rs".to_owned())]
        );
        for signature in
            ["fn f()", "fn f<T>() -> A<{ 3 }> where T: Copy,", "impl S { fn g() {} } pub async fn f()"]
        {
            assert_eq!(found("a.rs", &function_of(MAX_FN_LINES, signature)), [], "{signature}");
            let long = found("a.rs", &function_of(MAX_FN_LINES + 1, signature));
            assert_eq!(long, [(Some(FN_LINES), "a.rs::f".to_owned())], "{signature}");
        }
        let inside = format!("proptest! {{\n{}}}", function_of(MAX_FN_LINES + 1, "#[test] fn f(x in 0..9)"));
        assert_eq!(found("a.rs", &inside), [(Some(FN_LINES), "a.rs::f".to_owned())]);
    }

    #[test]
    fn declarations_without_a_body_are_ignored() {
        let text = format!("trait T {{ fn f(); }}\n{}", "const X: fn() = g;\n".repeat(MAX_FN_LINES));
        assert_eq!(found("a.rs", &text), []);
    }

    #[test]
    fn leftovers_are_found_in_code_but_not_in_text() {
        for code in ["fn f() { todo!() }", "fn f() { g(|| unimplemented!(\"x\")) }", "fn f() { dbg!(1); }"] {
            assert_eq!(found("a.rs", code).len(), 1, "{code}");
        }
        assert_eq!(found("a.rs", "// todo!()\n/// dbg!(1)\nfn todo() -> &'static str { \"todo!()\" }"), []);
    }

    #[test]
    fn output_that_can_panic_or_is_not_escaped_is_found_in_programs() {
        for code in ["fn f() { println!(\"x\") }", "fn f() { g(|| eprint!(\"x\")) }"] {
            assert_eq!(found("crates/cli/src/a.rs", code).len(), 1, "{code}");
            assert_eq!(found("crates/lab/src/a.rs", code).len(), 1, "{code}");
            assert_eq!(found("crates/cli/src/out.rs", code).len(), 1, "{code}");
            assert_eq!(found("crates/sim/examples/a.rs", code), [], "{code}");
        }
        let code = "fn f() { std::io::stdout().lock(); }";
        assert_eq!(found("crates/cli/src/a.rs", code).len(), 1);
        assert_eq!(found("crates/cli/src/out.rs", code), []);
        assert_eq!(
            found("crates/cli/src/a.rs", "fn f(c: Command) { c.stdout(Stdio::null()); c.stdout.take(); }"),
            []
        );
    }

    #[test]
    fn unsafe_code_is_found_outside_its_folders() {
        let code = "fn f() { unsafe { g() } }";
        assert_eq!(found("crates/cc/src/a.rs", code).len(), 1);
        assert_eq!(found("crates/io/src/a.rs", code), []);
        assert_eq!(found("crates/cc/src/a.rs", "// unsafe\nconst A: &str = r#\"unsafe\"#;"), []);
    }

    #[test]
    fn tests_that_do_not_run_are_found() {
        for attribute in ["#[ignore]", "#[ignore = \"slow\"]", "#[cfg_attr(miri, ignore)]"] {
            let code = format!("#[test]\n{attribute}\nfn slow() {{}}");
            assert_eq!(found("a.rs", &code), [(Some(IGNORED), "a.rs::slow".to_owned())], "{attribute}");
        }
        assert_eq!(found("a.rs", "/// ```rust,ignore\n/// f()\n/// ```\nfn f() {}").len(), 1);
        assert_eq!(found("a.rs", "/// ```no_run\n/// f()\n/// ```\n#[must_use]\nfn ignore() {}"), []);
    }

    #[test]
    fn exception_covers_only_its_breach_and_needs_use_and_reason() {
        let breach =
            || vec![Breach { rule: Some(IGNORED), item: "a.rs::f".to_owned(), text: "t".to_owned() }];
        assert_eq!(
            excuse(breach(), "# note\n\nignored a.rs::f needs a device\n").unwrap(),
            Vec::<String>::new()
        );
        assert_eq!(excuse(breach(), "").unwrap().len(), 1);
        assert_eq!(excuse(breach(), "fn-lines a.rs::f one table\n").unwrap().len(), 2);
        assert_eq!(excuse(Vec::new(), "ignored a.rs::f needs a device\n").unwrap().len(), 1);
        assert!(excuse(breach(), "ignored a.rs::f\n").is_err());
        assert!(excuse(breach(), "anything a.rs::f needs a device\n").is_err());
    }
}
