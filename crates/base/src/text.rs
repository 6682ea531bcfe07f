//! Escapes untrusted text for display: file names, and messages of a peer.
//!
//! Characters that steer a terminal or cannot be seen are written as `\n`, `\r`, `\t`, `\x1b` (of ASCII) or `\u202e`, and bytes
//! that are not UTF-8 as `\xff`: bash reads the same between `$'` and `'`. A name is told by what is shown, since its
//! backslashes are doubled; in other text they are not, so that what was shown once stays as it is when it is shown again.

use core::fmt::Write as _;
use std::borrow::Cow;

/// Whether a terminal would act on this character, or show nothing for it.
///
/// Controls (C0, DEL, C1), what changes the direction of writing (Unicode Standard Annex 9), ends of lines beside `\n`, and
/// characters without a width. Variation selectors stay, and so do the joiners U+200C and U+200D behind a character beyond
/// ASCII: emoji and Persian are written with them (Unicode Standard, section 23.2).
pub fn is_hidden(c: char) -> bool {
    c.is_control()
        || matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}')
}

/// Which characters are written otherwise, beside the hidden ones.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    /// A name: backslashes are doubled.
    Name,
    /// One line of text.
    Line,
    /// Lines of text: their ends and tabs stay.
    Lines,
    /// JSON: no `\x`.
    Json,
}

/// A name in one line, from which no other name is shown the same.
pub fn name(bytes: &[u8]) -> String {
    of_bytes(bytes, Form::Name)
}

/// Text in one line.
pub fn line(text: &str) -> Cow<'_, str> {
    shown(text, Form::Line)
}

/// Text in lines: `\n` and `\t` stay as they are.
pub fn lines(text: &str) -> Cow<'_, str> {
    shown(text, Form::Lines)
}

/// Text as it came from a peer, in one line.
pub fn line_of(bytes: &[u8]) -> String {
    of_bytes(bytes, Form::Line)
}

/// JSON of the same value (RFC 8259, section 7: every character of a string may be written as `\uXXXX`).
pub fn json(text: &str) -> Cow<'_, str> {
    shown(text, Form::Json)
}

fn of_bytes(bytes: &[u8], form: Form) -> String {
    let mut out = String::with_capacity(bytes.len());
    for part in bytes.utf8_chunks() {
        push(&mut out, part.valid(), form);
        for b in part.invalid() {
            let _ = write!(out, "\\x{b:02x}"); // a String takes everything
        }
    }
    out
}

fn shown(text: &str, form: Form) -> Cow<'_, str> {
    let plain = |b: u8| matches!(b, 0x20..0x7f) || form != Form::Line && b == b'\n';
    if text.bytes().all(plain) {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    push(&mut out, text, form);
    Cow::Owned(out)
}

fn push(out: &mut String, text: &str, form: Form) {
    let mut joins = false;
    for c in text.chars() {
        let stays = match c {
            '\\' => form != Form::Name,
            '\n' | '\t' => matches!(form, Form::Lines | Form::Json),
            '\u{200c}' | '\u{200d}' => joins,
            c => !is_hidden(c),
        };
        joins = !c.is_ascii() && stays;
        if stays {
            out.push(c);
        } else {
            escape(out, c, form);
        }
    }
}

fn escape(out: &mut String, c: char, form: Form) {
    match c {
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        c if c.is_ascii() && form != Form::Json => {
            let _ = write!(out, "\\x{:02x}", c as u32); // a String takes everything
        }
        c => {
            for unit in c.encode_utf16(&mut [0; 2]) {
                let _ = write!(out, "\\u{unit:04x}"); // a String takes everything
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn hidden_characters_of_a_name_are_escaped() {
        for (bytes, shown) in [
            (&b"plain name"[..], "plain name"),
            (
                "gr\u{fc}\u{df}e \u{65e5}\u{672c} \u{5d0}\u{5d1}".as_bytes(),
                "gr\u{fc}\u{df}e \u{65e5}\u{672c} \u{5d0}\u{5d1}",
            ),
            (b"a\x1b[2Jb\x07\x7f", "a\\x1b[2Jb\\x07\\x7f"),
            (b"a\r\nb\tc\\n", "a\\r\\nb\\tc\\\\n"),
            ("csi \u{9b}31m".as_bytes(), "csi \\u009b31m"),
            ("x\u{202e}gpj.exe\u{2066}\u{200f}\u{61c}".as_bytes(), "x\\u202egpj.exe\\u2066\\u200f\\u061c"),
            ("\u{feff}a\u{200b}b\u{2028}c\u{2029}".as_bytes(), "\\ufeffa\\u200bb\\u2028c\\u2029"),
            ("tag\u{e0041}".as_bytes(), "tag\\udb40\\udc41"),
            (b"\xff\xc3(\x9b", "\\xff\\xc3(\\x9b"),
        ] {
            assert_eq!(name(bytes), shown);
        }
    }

    #[test]
    fn joiners_are_kept_between_letters_and_emoji() {
        let persian = "\u{645}\u{6cc}\u{200c}\u{62e}";
        let family = "\u{1f468}\u{200d}\u{1f469}";
        assert_eq!(name(persian.as_bytes()), persian);
        assert_eq!(line(family), family);
        assert_eq!(line("a\u{200d}b"), "a\\u200db");
        assert_eq!(line("\u{200d}b"), "\\u200db");
    }

    #[test]
    fn multi_line_text_keeps_only_line_breaks() {
        assert_eq!(lines("a\n\tb\r\x1b"), "a\n\tb\\r\\x1b");
        assert_eq!(line("a\n\tb\\"), "a\\n\\tb\\");
        assert!(matches!(lines("a plain line\n"), Cow::Borrowed(_)));
        assert_eq!(line_of(b"no\xff\n"), "no\\xff\\n");
    }

    proptest! {
        #[test]
        fn escaping_removes_hidden_characters_and_is_idempotent(text in any::<String>(), raw in any::<Vec<u8>>()) {
            for shown in [line(&text).into_owned(), name(text.as_bytes()), name(&raw), line_of(&raw)] {
                let left = shown.chars().any(|c| is_hidden(c) && !matches!(c, '\u{200c}' | '\u{200d}'));
                prop_assert!(!left, "{shown:?}");
                prop_assert_eq!(line(&shown), shown.as_str());
                prop_assert_eq!(lines(&shown), shown.as_str());
            }
            // A limit of the protocol counts on it.
            prop_assert!(name(&raw).len() <= 4 * raw.len());
        }

        #[test]
        fn escaped_names_are_unambiguous(text in any::<String>(), raw in any::<Vec<u8>>()) {
            prop_assert_eq!(read(&name(text.as_bytes())), text.as_bytes());
            prop_assert_eq!(read(&name(&raw)), raw);
        }

        #[test]
        fn json_with_hidden_characters_escaped_has_the_same_value(text in any::<String>()) {
            // Only what stands in strings can be hidden, and controls are escaped there already.
            let json = format!("\"{}\"", text.replace(|c: char| c < ' ' || c == '\\' || c == '"', ""));
            prop_assert_eq!(read(&super::json(&json)), json.as_bytes());
        }
    }

    /// The bytes of which a name is shown so.
    fn read(shown: &str) -> Vec<u8> {
        let (mut out, mut rest) = (Vec::new(), shown);
        let number = |digits: &str| u16::from_str_radix(digits, 16).unwrap();
        while let Some(at) = rest.find('\\') {
            out.extend(rest[..at].bytes());
            let (kind, after) = rest[at + 1..].split_at(1);
            rest = after;
            match kind {
                "x" => {
                    out.push(number(&rest[..2]) as u8);
                    rest = &rest[2..];
                }
                "u" => {
                    let mut units = vec![number(&rest[..4])];
                    rest = &rest[4..];
                    if (0xd800..0xdc00).contains(&units[0]) {
                        units.push(number(&rest[2..6]));
                        rest = &rest[6..];
                    }
                    out.extend(String::from_utf16(&units).unwrap().bytes());
                }
                "n" => out.push(b'\n'),
                "r" => out.push(b'\r'),
                "t" => out.push(b'\t'),
                _ => out.push(b'\\'),
            }
        }
        out.extend(rest.bytes());
        out
    }
}
