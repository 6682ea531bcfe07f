//! A bench with a folder for control sockets of its own.
#![allow(dead_code)] // each test file uses its part of this

use crate::common::Bench;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

pub struct ControlBench {
    pub bench: Bench,
    pub run: PathBuf,
}

impl ControlBench {
    pub fn new() -> ControlBench {
        let bench = Bench::new();
        let run = bench.path("run");
        ControlBench { bench, run }
    }
    /// A command that shows itself in the folder, or finds others there.
    pub fn client(&self, args: &[&str]) -> Command {
        let mut c = self.bench.client(args);
        c.env("LONGHAUL_RUN", &self.run);
        c
    }
    pub fn run(&self, args: &[&str]) -> Output {
        self.client(args).output().unwrap()
    }
    /// A file of the test's own.
    pub fn file(&self, name: &str, bytes: &(impl AsRef<[u8]> + ?Sized)) -> String {
        let path = self.bench.path(name);
        fs::write(&path, bytes).unwrap();
        path.to_str().unwrap().into()
    }
}
