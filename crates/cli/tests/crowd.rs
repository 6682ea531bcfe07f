//! Small folders beside very many files, over both transports: listings of any size stop nothing.

mod common;

use common::{Bench, expect, json, tree};
use std::fs;
use std::path::Path;

/// Files with names of 217 bytes: more than a listing sends before the other end asks for more (2 MiB).
const FILES: usize = 14_000;

fn crowd(at: &Path) {
    let tail = "x".repeat(200);
    fs::create_dir_all(at).unwrap();
    for i in 0..FILES {
        fs::File::create(at.join(format!("file-{i:06}-{tail}"))).unwrap();
    }
}

#[test]
fn small_folder_transfers_beside_very_many_files() {
    let b = Bench::new();
    crowd(&b.path("srv"));
    crowd(&b.path("back"));
    for (place, names) in [("first", &["aaa"][..]), ("last", &["zzz"]), ("both", &["a", "z"])] {
        for n in names {
            fs::create_dir_all(b.path(place).join(n)).unwrap();
            fs::write(b.path(place).join(n).join("f"), n).unwrap();
        }
    }
    let server = b.serve("srv", &["--iwarp", "both", "--allow-any-key"]);
    for (scheme, way) in [("longhaul", "--accept-new"), ("iwarp", "--plain")] {
        for place in ["first", "last", "both"] {
            let url = format!("{scheme}://{}/", server.address);
            let from = format!("{}/", b.path(place).display());
            let o = b.run(&["put", way, "--json", &from, &url]);
            expect(&o, 0);
            let files = fs::read_dir(b.path(place)).unwrap().count() as u64;
            assert_eq!(json(&o)["transfer"]["totals"]["files"].as_u64(), Some(files), "{scheme} {place}");
            let there = format!("{url}{place}/");
            expect(&b.run(&["put", way, &from, &there]), 0);
            let back = format!("{}/", b.path("back").display());
            expect(&b.run(&["get", way, &there, &back]), 0);
            for e in fs::read_dir(b.path(place)).unwrap() {
                let n = e.unwrap().file_name();
                for at in ["srv", "back"] {
                    assert_eq!(tree(&b.path(place).join(&n)), tree(&b.path(at).join(&n)), "{scheme} {at}");
                    fs::remove_dir_all(b.path(at).join(&n)).unwrap();
                }
            }
        }
        let o = b.run(&["ls", way, &format!("{scheme}://{}/", server.address)]);
        expect(&o, 0);
        let listed = String::from_utf8(o.stdout).unwrap().lines().filter(|l| l.contains("file-")).count();
        assert_eq!(listed, FILES, "{scheme}");
    }
}
