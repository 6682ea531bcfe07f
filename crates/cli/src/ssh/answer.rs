//! The line by which the program that ssh starts tells its port, token and paths.
//!
//! ```text
//! longhaul-over-ssh 1 version=0.1.0 port=40123 token=lht1_... address=192.0.2.7 path=photos path=a%20b/
//! ```
//!
//! Words are divided by one space. The number behind the first word is the version of this line; words with other names are
//! passed over, so that later versions can add some.

use crate::url;
use std::net::IpAddr;
use transport::crypto::OneTimeToken;
use zeroize::Zeroizing;

/// What the line begins with.
const MARK: &str = "longhaul-over-ssh";
/// The version of the line.
const VERSION: &str = "1";
/// Characters of a program's version that are kept.
const MAX_VERSION: usize = 40;

/// What the far end says.
#[derive(Clone, Debug)]
pub struct Answer {
    /// The version of the program there.
    pub version: String,
    /// The UDP port it listens at.
    pub port: u16,
    /// What to show it, with the fingerprint of the key that it shows.
    pub token: OneTimeToken,
    /// The address there at which ssh arrived, if the far end knows it.
    pub address: Option<IpAddr>,
    /// What was asked for, below the folder that it serves, in the order asked.
    pub paths: Vec<Vec<u8>>,
}

/// A line that is not the answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NotAnAnswer {
    /// Of somebody else: a shell that says something at login.
    OtherOutput,
    /// It begins as the answer does, but cannot be used: why.
    Unusable(String),
}

impl Answer {
    /// The line, with its end. It holds a secret.
    pub fn to_line(&self) -> Zeroizing<String> {
        let token = self.token.to_text();
        let address = self.address.map(|a| format!(" address={a}")).unwrap_or_default();
        let paths: String = self.paths.iter().map(|p| format!(" path={}", url::encode(p))).collect();
        let room = MARK.len() + token.len() + address.len() + paths.len() + self.version.len() + 64;
        let mut line = Zeroizing::new(String::with_capacity(room));
        line.push_str(&format!("{MARK} {VERSION} version={} port={} token=", self.version, self.port));
        [token.as_str(), &address, &paths, "\n"].iter().for_each(|s| line.push_str(s));
        line
    }

    /// Reads a line.
    ///
    /// # Errors
    /// [`NotAnAnswer`] says what it is instead.
    pub fn parse(line: &[u8]) -> Result<Answer, NotAnAnswer> {
        let rest = line
            .strip_prefix(MARK.as_bytes())
            .and_then(|r| r.strip_prefix(b" "))
            .ok_or(NotAnAnswer::OtherOutput)?;
        let bad = |why: &str| NotAnAnswer::Unusable(why.to_owned());
        let text = core::str::from_utf8(rest).map_err(|_| bad("it is not ASCII"))?;
        let mut words = text.trim_end_matches(['\r', '\n']).split(' ');
        if words.next() != Some(VERSION) {
            return Err(bad("it is of another version"));
        }
        let (mut version, mut port, mut token, mut address) = (String::new(), None, None, None);
        let mut paths = Vec::new();
        for word in words {
            let Some((name, value)) = word.split_once('=') else { continue };
            match name {
                "version" => version = value.chars().take(MAX_VERSION).collect(),
                "port" => port = value.parse().ok().filter(|p| *p > 0),
                "token" => token = value.parse::<OneTimeToken>().ok().filter(|t| t.server().is_some()),
                "address" => address = value.parse().ok(),
                "path" => paths.push(url::decode(value).map_err(NotAnAnswer::Unusable)?),
                _ => {}
            }
        }
        let port = port.ok_or_else(|| bad("it names no port"))?;
        let token = token.ok_or_else(|| bad("it has no token with a fingerprint"))?;
        if paths.is_empty() {
            return Err(bad("it names no path"));
        }
        Ok(Answer { version, port, token, address, paths })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use transport::crypto::Identity;

    fn token() -> OneTimeToken {
        OneTimeToken::new([3; 32], Some(Identity::from_seed([4; 32]).public_key().fingerprint()))
    }

    fn answer(paths: Vec<Vec<u8>>, address: Option<IpAddr>) -> Answer {
        Answer { version: "1.2.3".into(), port: 7, token: token(), address, paths }
    }

    fn same(a: &Answer, b: &Answer) -> bool {
        let key = |a: &Answer| (a.version.clone(), a.port, a.token.to_text(), a.address, a.paths.clone());
        key(a) == key(b)
    }

    #[test]
    fn answer_line_round_trips() {
        let a =
            answer(vec![b"a b/".to_vec(), b"".to_vec(), b"\xff\n=%".to_vec()], "2001:db8::1".parse().ok());
        let line = a.to_line();
        assert_eq!(line.lines().count(), 1);
        assert!(same(&Answer::parse(line.as_bytes()).unwrap(), &a), "{}", *line);
        let later = line.replace(" port=", " colour=blue plain port=").replace('\n', "\r\n");
        assert!(same(&Answer::parse(later.as_bytes()).unwrap(), &a));
        assert!(!format!("{a:?}").contains(&token().to_text()[..20]), "the secret is shown");
    }

    #[test]
    fn other_output_and_unusable_answers_are_distinguished() {
        let line = answer(vec![vec![]], None).to_line();
        for noise in ["", "Welcome!", "longhaul-over-sshx 1", " longhaul-over-ssh 1", "longhaul-over-ssh"] {
            assert_eq!(Answer::parse(noise.as_bytes()).unwrap_err(), NotAnAnswer::OtherOutput, "{noise}");
        }
        let without = [
            line.replace("ssh 1", "ssh 2"),
            line.replace("port=7", "port=0"),
            line.replace("port=7", "port=70000"),
            line.replace(" path=", " way="),
            line.replace(" path=", " path=%x"),
            line.replace("lht1_", "lht2_"),
            // Without the fingerprint nothing would be checked.
            line.replace(&*token().to_text(), token().to_text().split('.').next().unwrap()),
        ];
        for bad in without {
            assert!(matches!(Answer::parse(bad.as_bytes()), Err(NotAnAnswer::Unusable(_))), "{bad}");
        }
    }

    proptest! {
        #[test]
        fn any_line_is_read_without_panic(s in "\\PC{0,80}", bytes in proptest::collection::vec(any::<u8>(), 0..80)) {
            for text in [s.as_bytes(), &bytes] {
                let _ = Answer::parse(text);
                let _ = Answer::parse(&[b"longhaul-over-ssh 1 ", text].concat());
            }
        }

        #[test]
        fn truncated_or_mutated_line_causes_no_panic(at in 0usize..200, byte: u8) {
            let line = answer(vec![b"photos".to_vec()], None).to_line();
            let mut bytes = line.as_bytes().to_vec();
            let _ = Answer::parse(&bytes[..at.min(bytes.len())]);
            if let Some(b) = bytes.get_mut(at) {
                *b = byte;
            }
            let _ = Answer::parse(&bytes);
        }

        #[test]
        fn any_path_survives(paths in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..40), 1..5)) {
            let a = answer(paths, None);
            prop_assert!(same(&Answer::parse(a.to_line().as_bytes()).unwrap(), &a));
        }
    }
}
