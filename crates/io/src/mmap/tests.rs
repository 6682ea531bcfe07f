//! Tests with real files, among them one that shrinks while it is read.

use super::file::{self, Allocated, Extent};
use super::*;
use std::io::Write as _;
use std::os::unix::fs::FileExt as _;

struct Temp {
    _dir: tempfile::TempDir,
    path: PathBuf,
    file: File,
}

fn temp(content: &[u8]) -> Temp {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("data");
    let mut file = File::options().read(true).write(true).create_new(true).open(&path).unwrap();
    file.write_all(content).unwrap();
    Temp { _dir: dir, path, file }
}

fn pattern(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * 31 + i / 4_096) as u8).collect()
}

#[test]
fn mapping_shows_its_part_of_the_file() {
    let content = pattern(40_000);
    let t = temp(&content);
    for (offset, len) in [(0, 40_000), (1, 39_999), (4_096, 1), (12_345, 20_000), (40_000, 0)] {
        let m = MappedFile::source(&t.file, &t.path, offset, len).unwrap();
        let mut out = vec![0; len as usize];
        assert!(m.read(0, &mut out) && !m.fault());
        assert_eq!(out, content[offset as usize..][..len as usize]);
        assert!(!m.read(1, &mut out) || len == 0 && out.is_empty() && m.is_empty());
        m.advise_sequential().unwrap();
        m.populate(0, m.len()).unwrap();
        m.release(0, usize::MAX).unwrap();
        m.sync(0, m.len()).unwrap();
    }
    for (offset, len) in [(0, 40_001), (40_001, 0), (u64::MAX, 1), (1, u64::MAX)] {
        assert!(matches!(
            MappedFile::source(&t.file, &t.path, offset, len),
            Err(MapError::Outside { size: 40_000, .. })
        ));
    }
}

#[test]
fn truncated_source_reads_as_zeroes_and_reports_a_fault() {
    let page = sigbus::page_size();
    let t = temp(&pattern(8 * page));
    let m = MappedFile::open_source(&t.path).unwrap();
    let other = MappedFile::open_source(&t.path).unwrap();
    let mut out = vec![0xaa; 8 * page];
    t.file.set_len(3 * page as u64).unwrap();
    assert!(m.read(0, &mut out));
    assert!(m.fault() && !other.fault());
    assert_eq!(out[..3 * page], pattern(8 * page)[..3 * page]);
    assert!(out[3 * page..].iter().all(|b| *b == 0));
    // What is still there goes on being read without a fault.
    assert!(other.read(0, &mut out[..page]) && !other.fault());
}

#[test]
fn concurrent_faults_are_survived() {
    let page = sigbus::page_size();
    let t = temp(&pattern(64 * page));
    let m = MappedFile::open_source(&t.path).unwrap();
    t.file.set_len(0).unwrap();
    std::thread::scope(|s| {
        for _ in 0..8 {
            s.spawn(|| {
                let mut out = vec![0xaa; 64 * page];
                assert!(m.read(0, &mut out) && m.fault());
                assert!(out.iter().all(|b| *b == 0));
            });
        }
    });
}

#[test]
fn writes_beyond_a_truncated_destination_are_reported() {
    let page = sigbus::page_size();
    let t = temp(b"");
    file::allocate(&t.file, &t.path, 4 * page as u64).unwrap();
    let mut m = MappedFile::destination(&t.file, &t.path, 0, 4 * page as u64).unwrap();
    assert!(m.write(0, &pattern(page)) && !m.fault());
    t.file.set_len(page as u64).unwrap();
    assert!(m.write(2 * page, &pattern(page)) && m.fault());
}

#[test]
fn reused_table_entry_starts_without_a_fault() {
    let page = sigbus::page_size();
    for _ in 0..3 {
        let t = temp(&pattern(page));
        let m = MappedFile::open_source(&t.path).unwrap();
        assert!(!m.fault());
        t.file.set_len(0).unwrap();
        let mut out = [1];
        assert!(m.read(0, &mut out) && m.fault());
        assert_eq!(out, [0]);
    }
}

/// Run by the test below in a process of its own.
#[test]
#[ignore = "dies by design; run by faults_outside_mappings_still_end_the_process"]
fn child_faults_outside_our_mappings() {
    let t = temp(&pattern(10));
    let _ours = MappedFile::open_source(&t.path).unwrap();
    // SAFETY: a new mapping; the fault on reading it beyond the file's end is the test.
    unsafe {
        let p = libc::mmap(
            core::ptr::null_mut(),
            8_192,
            libc::PROT_READ,
            libc::MAP_SHARED,
            std::os::fd::AsRawFd::as_raw_fd(&t.file),
            0,
        );
        println!("survived: {}", p.cast::<u8>().add(4_096).read_volatile());
    }
}

#[test]
fn faults_outside_mappings_still_end_the_process() {
    use std::os::unix::process::ExitStatusExt as _;
    let out = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "mmap::tests::child_faults_outside_our_mappings"])
        .output()
        .unwrap();
    assert_eq!(out.status.signal(), Some(libc::SIGBUS), "{out:?}");
}

#[test]
fn destination_keeps_written_data() {
    let content = pattern(100_000);
    let t = temp(b"");
    assert_eq!(file::allocate(&t.file, &t.path, 100_000).unwrap(), Allocated::Reserved);
    let mut m = MappedFile::destination(&t.file, &t.path, 0, 100_000).unwrap();
    assert!(m.write(0, &content[..50_000]) && m.write(50_000, &content[50_000..]));
    assert!(!m.write(99_999, &[1, 2]));
    m.sync(10_000, 20_000).unwrap();
    drop(m);
    file::sync_data(&t.file, &t.path).unwrap();
    assert_eq!(std::fs::read(&t.path).unwrap(), content);
    let mut m = MappedFile::open_source(&t.path).unwrap();
    assert!(!m.write(0, b"x") && !m.writable());
}

#[test]
fn allocation_resizes_and_rejects_impossible_sizes() {
    let t = temp(&pattern(10_000));
    file::allocate(&t.file, &t.path, 5_000).unwrap();
    file::allocate(&t.file, &t.path, 20_000).unwrap();
    let mut expected = pattern(5_000);
    expected.resize(20_000, 0);
    assert_eq!(std::fs::read(&t.path).unwrap(), expected);
    // A petabyte: more than this file system has, or more than a file may have.
    let e = file::allocate(&t.file, &t.path, 1 << 50).unwrap_err();
    assert!(matches!(e, MapError::NoSpace { .. }), "{e}");
    assert_eq!(t.file.metadata().unwrap().len(), 20_000);
    file::allocate(&t.file, &t.path, 0).unwrap();
    assert_eq!(t.file.metadata().unwrap().len(), 0);
}

#[test]
fn holes_are_found() {
    let t = temp(b"");
    const MIB: u64 = 1 << 20;
    // Offsets in terabytes: sparse, so they cost nothing.
    let far = 2 << 40;
    file::set_len(&t.file, &t.path, far + 3 * MIB).unwrap();
    t.file.write_all_at(&pattern(MIB as usize), far).unwrap();
    t.file.write_all_at(&pattern(MIB as usize), MIB).unwrap();
    let all = |f: &File| file::extents(f, &t.path).unwrap().collect::<Result<Vec<_>, _>>().unwrap();
    let (a, b) = (Extent { offset: MIB, len: MIB }, Extent { offset: far, len: MIB });
    assert_eq!(all(&t.file), [a, b]);
    let m = MappedFile::source(&t.file, &t.path, far, MIB).unwrap();
    let mut out = vec![0; MIB as usize];
    assert!(m.read(0, &mut out) && out == pattern(MIB as usize));
    assert!(file::punch_hole(&t.file, &t.path, MIB, MIB).unwrap());
    assert_eq!(all(&t.file), [b]);
    assert_eq!(t.file.metadata().unwrap().len(), far + 3 * MIB);
    assert_eq!(all(&temp(b"").file), []);
}
