//! The log on standard error: one escaped line for each event.

use crate::out;
use base::text;
use std::fmt::{self, Debug, Write as _};
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::{FormatTime as _, SystemTime};
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Begins it: what RUST_LOG says, else warnings and, with -v, more.
pub fn begin(verbose: u8) {
    let level = ["warn", "info", "debug", "trace"][usize::from(verbose.min(3))];
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(|| out::Log)
        // No colours in files and pipes.
        .with_ansi(out::error_is_terminal())
        // It would say by a macro that panics where standard error is closed.
        .log_internal_errors(false)
        .event_format(LineFormat { target: verbose > 1 })
        .init();
}

/// Time, level, message and fields.
struct LineFormat {
    /// And which part of the program says it.
    target: bool,
}

impl<S, N> FormatEvent<S, N> for LineFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, _: &FmtContext<'_, S, N>, mut w: Writer<'_>, e: &Event<'_>) -> fmt::Result {
        let mut said = EventText { text: String::new(), target: e.metadata().target().to_owned() };
        e.record(&mut said);
        let (dim, colour, plain) = match (w.has_ansi_escapes(), *e.metadata().level()) {
            (false, _) => ("", "", ""),
            (true, Level::ERROR) => ("\x1b[2m", "\x1b[31m", "\x1b[0m"),
            (true, Level::WARN) => ("\x1b[2m", "\x1b[33m", "\x1b[0m"),
            (true, Level::INFO) => ("\x1b[2m", "\x1b[32m", "\x1b[0m"),
            (true, Level::DEBUG) => ("\x1b[2m", "\x1b[34m", "\x1b[0m"),
            (true, Level::TRACE) => ("\x1b[2m", "\x1b[35m", "\x1b[0m"),
        };
        w.write_str(dim)?;
        if SystemTime.format_time(&mut w).is_err() {
            w.write_str("-")?;
        }
        write!(w, "{plain} {colour}{:>5}{plain} ", e.metadata().level().as_str())?;
        if self.target {
            write!(w, "{dim}{}:{plain} ", text::line(&said.target))?;
        }
        writeln!(w, "{}", text::line(&said.text))
    }
}

/// What an event says, before it is made fit to be shown.
struct EventText {
    text: String,
    target: String,
}

impl EventText {
    fn add(&mut self, field: &Field, value: fmt::Arguments<'_>) {
        let space = if self.text.is_empty() { "" } else { " " };
        let _ = match field.name() {
            "message" => write!(self.text, "{space}{value}"),
            // Of libraries that log by the `log` crate.
            "log.target" => {
                self.target = value.to_string();
                Ok(())
            }
            name if name.starts_with("log.") => Ok(()),
            name => write!(self.text, "{space}{name}={value}"),
        }; // a String takes everything
    }
}

impl Visit for EventText {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, format_args!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        match field.name() {
            "message" | "log.target" => self.add(field, format_args!("{value}")),
            // In quotes, so that it ends where it should.
            _ => {
                let quoted = text::name(value.as_bytes()).replace('"', "\\\"");
                self.add(field, format_args!("\"{quoted}\""));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct CapturedLog(Arc<Mutex<Vec<u8>>>);

    impl io::Write for CapturedLog {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    fn logged(colours: bool) -> String {
        let kept = CapturedLog::default();
        let writer = kept.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(Level::TRACE)
            .with_writer(move || writer.clone())
            .with_ansi(colours)
            .event_format(LineFormat { target: true })
            .finish();
        tracing::subscriber::with_default(subscriber, || {
            let evil = "a\x1b[2J\nb\u{202e}\" x=\"1";
            tracing::warn!(text = evil, shown = %evil, debug = ?evil, n = 3, "said {evil}");
            tracing::trace!(message = evil);
        });
        String::from_utf8(kept.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn log_escapes_text_of_others() {
        let text = logged(false);
        assert!(!text.chars().any(|c| text::is_hidden(c) && c != '\n'), "{text:?}");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 2, "{text}");
        let shown = "a\\x1b[2J\\nb\\u202e";
        for part in [
            format!("said {shown}\" x=\"1"),
            // What is in quotes ends where it should.
            format!("text=\"{shown}\\\" x=\\\"1\""),
            format!("shown={shown}"),
            "n=3".to_owned(),
        ] {
            assert!(lines[0].contains(&part), "{part}: {text}");
        }
        assert!(lines[0].contains("WARN longhaul::log::tests: ") && lines[1].contains("TRACE"), "{text}");
    }

    #[test]
    fn log_colours_are_only_its_own() {
        let text = logged(true);
        let bare =
            ["\x1b[2m", "\x1b[33m", "\x1b[35m", "\x1b[0m"].iter().fold(text.clone(), |t, c| t.replace(c, ""));
        assert!(text.contains("\x1b[33m WARN\x1b[0m") && !bare.contains('\x1b'), "{text:?}");
    }
}
