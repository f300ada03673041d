//! Promise: a file that would not hold pages where they are written is refused, with the reason;
//! a block device has its own length.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::process::Command;

use highwater::{Access, FileBacking, Manager, OpenError};

/// Symptom: pages of a file that was opened to append were written at its end, and `sync`
/// succeeded.
#[test]
fn a_file_opened_to_append_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [1; 3 * 4096]).unwrap();
    let opened = OpenOptions::new().read(true).append(true).open(file.path());
    let refused = FileBacking::new(opened.unwrap()).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("O_APPEND"), "{refused}");
    assert_eq!(fs::read(file.path()).unwrap(), [1; 3 * 4096]);
}

/// Symptom: each page of such a file was an error of its own, "Bad file descriptor".
#[test]
fn a_descriptor_that_reads_nothing_is_refused() {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), [1; 3 * 4096]).unwrap();
    let writable = OpenOptions::new().write(true).open(file.path());
    let mut by_path = OpenOptions::new();
    let by_path = by_path.read(true).custom_flags(libc::O_PATH);
    for opened in [writable, by_path.open(file.path())] {
        let refused = FileBacking::new(opened.unwrap()).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
        assert!(refused.to_string().contains("reading"), "{refused}");
    }
}

#[test]
fn a_descriptor_past_the_kernels_cache_is_opened_otherwise() {
    let file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(file.path(), [1; 3 * 4096 + 5]).unwrap();
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(file.path());
    let Ok(direct) = direct else {
        println!("not tested: no direct I/O here");
        return;
    };
    let refused = FileBacking::new(direct).unwrap_err();
    assert!(refused.to_string().contains("open_direct"), "{refused}");
}

/// Symptom: a directory was a file of one page that could never be read, and a device one of none.
#[test]
fn what_is_no_file_is_refused() {
    let hw = Manager::builder().build().unwrap();
    let dir = tempfile::tempdir().unwrap();
    for path in [dir.path(), "/dev/null".as_ref(), "/dev/zero".as_ref()] {
        for opened in [hw.open(path), hw.open_direct(path)] {
            match opened {
                Err(OpenError::Io { source, .. } | OpenError::NotDirect { source, .. }) => {
                    println!("{}: {source}", path.display());
                }
                other => panic!("{}: {other:?}", path.display()),
            }
        }
    }
}

/// Goal: a device has its length, and is one file under two names. Method: a loop device of two
/// nodes, where the system allows one.
#[test]
fn a_block_device_has_its_length() {
    let image = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    fs::write(image.path(), [7; 16 * 4096]).unwrap();
    let made = Command::new("losetup")
        .args(["--find", "--show"])
        .arg(image.path())
        .output();
    let device = match made {
        Ok(made) if made.status.success() => String::from_utf8(made.stdout).unwrap(),
        other => {
            println!("not tested: no loop device can be made here: {other:?}");
            return;
        }
    };
    let device = device.trim();
    let hw = Manager::builder().build().unwrap();
    let outcome = File::open(device)
        .and_then(FileBacking::new)
        .map(|storage| {
            let file = hw.open_file(storage, Access::ReadOnly).unwrap();
            let map = hw.space(&hw.root()).map_file(&file, 0..16).unwrap();
            let first = map.read(&hw.enter(), 15).unwrap()[4095];
            (file.pages(), first, hw.open(device).unwrap().pages())
        });
    drop(hw);
    let detached = Command::new("losetup").args(["-d", device]).status();
    assert!(detached.unwrap().success());
    assert_eq!(outcome.unwrap(), (16, 7, 16));
}
