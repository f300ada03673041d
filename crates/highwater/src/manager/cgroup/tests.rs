//! Cgroup limits, read from directory trees as systems lay them out.

use std::time::Duration;

use tempfile::TempDir;

use super::*;
use crate::manager::{Background, BuildError, Manager};
use crate::sync::thread;
use crate::units::Pages;

const V2: &str = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";

/// A system with its own cgroup files.
pub(in crate::manager) struct System(TempDir);

impl System {
    pub(in crate::manager) fn new(cgroup: &str, mountinfo: &str) -> Self {
        let system = Self(TempDir::new().expect("a directory"));
        system.write("proc/self/cgroup", cgroup);
        system.write("proc/self/mountinfo", mountinfo);
        system
    }

    /// A process in the group `/a/b` of cgroup v2.
    pub(in crate::manager) fn v2() -> Self {
        Self::new("0::/a/b\n", V2)
    }

    pub(in crate::manager) fn write(&self, path: &str, text: &str) {
        let path = self.0.path().join(path);
        fs::create_dir_all(path.parent().expect("a path of files")).expect("a directory");
        fs::write(path, text).expect("a file");
    }

    pub(in crate::manager) fn memcg(&self) -> Memcg {
        Memcg::below(self.0.path())
    }

    fn limit(&self) -> Option<(Bytes, String)> {
        let limit = self.memcg().read_limits().lowest?;
        Some((limit.bytes, limit.file.display().to_string()))
    }
}

#[test]
fn the_least_limit_of_the_ancestors_holds() {
    let system = System::v2();
    assert_eq!(system.limit(), None, "no file at all");
    system.write("sys/fs/cgroup/a/b/memory.max", "max\n");
    assert_eq!(system.limit(), None, "no limit");
    system.write("sys/fs/cgroup/a/memory.max", "1048576\n");
    let of_a = Some((Bytes::mib(1), "/sys/fs/cgroup/a/memory.max".to_owned()));
    assert_eq!(system.limit(), of_a);
    system.write("sys/fs/cgroup/a/b/memory.max", "2097152\n");
    assert_eq!(system.limit(), of_a, "the ancestor's is less");
    system.write("sys/fs/cgroup/a/b/memory.max", "4096\n");
    let of_b = Some((Bytes(4096), "/sys/fs/cgroup/a/b/memory.max".to_owned()));
    assert_eq!(system.limit(), of_b);
    system.write("sys/fs/cgroup/a/c/memory.max", "1\n");
    assert_eq!(system.limit(), of_b, "not of another group");
}

#[test]
fn a_limit_of_version_1_is_found_beside_a_version_2_without_memory() {
    // Method: a hybrid system; the memory controller is mounted together with another one.
    let system = System::new(
        "9:name=systemd:/\n4:cpu,memory:/jobs/7\n0::/\n",
        "30 25 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,cpu,memory\n\
         31 25 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids\n\
         32 25 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n",
    );
    let file = |group: &str| format!("sys/fs/cgroup/memory{group}/memory.limit_in_bytes");
    system.write(&file(""), "9223372036854771712\n");
    system.write(&file("/jobs"), "9223372036854771712\n");
    assert_eq!(system.limit(), None);
    system.write(&file("/jobs/7"), "536870912\n");
    let found = system.limit().unwrap();
    assert_eq!(found, (Bytes::mib(512), format!("/{}", file("/jobs/7"))));
}

#[test]
fn a_container_sees_its_own_limit() {
    // Method: with a namespace, the cgroup is the root of the mount; without, it is named as on the
    // host, and the mount shows it alone; or it is named from outside the namespace; or the mount
    // shows one of its ancestors.
    let mount = |root: &str| format!("29 23 0:26 {root} /cg\\040roup ro - cgroup2 cgroup ro\n");
    for (cgroup, root) in [
        ("0::/\n", "/"),
        ("0::/docker/42\n", "/docker/42"),
        ("0::/docker/42\n", "/elsewhere"),
        ("0::/../../other\n", "/"),
        ("0::/docker/42/inner\n", "/docker/42"),
    ] {
        let system = System::new(cgroup, &mount(root));
        system.write("cg roup/memory.max", "67108864");
        let found = system.limit().unwrap();
        assert_eq!(
            found,
            (Bytes::mib(64), "/cg roup/memory.max".to_owned()),
            "{cgroup}"
        );
    }
}

#[test]
fn what_cannot_be_read_limits_nothing() {
    for (cgroup, mountinfo) in [
        ("", V2),
        ("0::/a/b\n", ""),
        (
            "nonsense\n::\n0:\n",
            "nonsense - cgroup2\n - \n1 2 3 - cgroup cgroup\n",
        ),
    ] {
        let system = System::new(cgroup, mountinfo);
        system.write("sys/fs/cgroup/a/b/memory.max", "4096");
        assert_eq!(system.limit(), None, "{cgroup:?}, {mountinfo:?}");
    }
    let system = System::v2();
    system.write("sys/fs/cgroup/a/b/memory.max", "many");
    assert_eq!(system.limit(), None);
}

#[test]
fn a_mount_of_another_group_or_with_any_name_changes_nothing() {
    // Method: another group is mounted besides, with a lower limit; and a mount point's name is no
    // UTF-8.
    let system = System::v2();
    system.write("sys/fs/cgroup/a/b/memory.max", "2097152");
    system.write("mnt/other/memory.max", "4096");
    let other = "40 23 0:26 /other /mnt/other rw - cgroup2 cgroup2 rw\n";
    let of_b = Some((Bytes::mib(2), "/sys/fs/cgroup/a/b/memory.max".to_owned()));
    for mountinfo in [format!("{V2}{other}"), format!("{other}{V2}")] {
        system.write("proc/self/mountinfo", &mountinfo);
        assert_eq!(system.limit(), of_b, "{mountinfo}");
    }
    let mut mountinfo = b"41 23 8:1 / /mnt/Mus\xe9e rw - ext4 /dev/sda rw\n".to_vec();
    mountinfo.extend_from_slice(V2.as_bytes());
    let path = system.0.path().join("proc/self/mountinfo");
    fs::write(path, mountinfo).expect("a file");
    assert_eq!(system.limit(), of_b);
}

#[test]
fn a_capacity_does_not_grow_when_the_limit_cannot_be_read() {
    // Method: each file in turn becomes a directory, which can be opened and not read; then the
    // limit is raised.
    for file in [
        "proc/self/cgroup",
        "proc/self/mountinfo",
        "sys/fs/cgroup/a/b/memory.max",
    ] {
        let system = System::v2();
        system.write("sys/fs/cgroup/a/memory.max", "3145728");
        system.write("sys/fs/cgroup/a/b/memory.max", "2097152");
        let builder = Manager::builder().capacity(Bytes::mib(4)).follow_cgroup();
        let hw = builder.memcg(system.memcg()).build().unwrap();
        assert_eq!(hw.capacity(), Bytes::kib(1792));
        let path = system.0.path().join(file);
        let text = fs::read_to_string(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        assert_eq!(hw.cgroup_tick(), Ok(Bytes::kib(1792)), "{file}");
        fs::remove_dir(&path).unwrap();
        system.write(file, &text);
        system.write("sys/fs/cgroup/a/b/memory.max", "max");
        assert_eq!(
            hw.cgroup_tick(),
            Ok(Bytes::kib(2688)),
            "{file}: of the parent"
        );
    }
}

#[test]
fn a_capacity_above_the_limit_is_refused_before_it_gets_the_process_killed() {
    let system = System::v2();
    system.write("sys/fs/cgroup/a/memory.max", "1048576\n");
    let builder = || Manager::builder().memcg(system.memcg());
    let refused = builder().capacity(Bytes::mib(2)).build().unwrap_err();
    assert!(
        matches!(refused, BuildError::AboveCgroup { .. }),
        "{refused}"
    );
    let text = refused.to_string();
    for part in ["2 MiB", "1 MiB", "/sys/fs/cgroup/a/memory.max", "frames"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    // The limit itself, and charges beyond the frames, are for the embedder to judge.
    builder().capacity(Bytes::mib(1)).build().unwrap();
    let larger = builder().capacity(Bytes::mib(2));
    larger.clone().frames(Bytes::mib(1)).build().unwrap();
    larger.frames(Bytes(0)).build().unwrap();
    system.write("sys/fs/cgroup/a/memory.max", "max\n");
    let hw = builder().capacity(Bytes::mib(2)).build().unwrap();
    assert_eq!(hw.frames().pages_floor(), Pages(512));
}

#[test]
fn a_capacity_follows_the_limit_down_and_up() {
    // Method: change the limit's file and tick after each change. Pages are reclaimed, and the
    // margin is an eighth.
    let system = System::v2();
    let limit = |text: &str| system.write("sys/fs/cgroup/a/memory.max", text);
    limit("max");
    let hw = Manager::builder()
        .capacity(Bytes::mib(4))
        .follow_cgroup()
        .memcg(system.memcg())
        .build()
        .unwrap();
    assert_eq!(hw.capacity(), Bytes::mib(4), "no limit");
    system.write("data", &"page".repeat(600 << 10));
    let data = hw.open(system.0.path().join("data")).unwrap();
    let map = hw.space(&hw.root()).map_file(&data, 0..600).unwrap();
    for page in 0..600 {
        assert_eq!(&map.read(&hw.enter(), page).unwrap()[..4], b"page");
    }
    for (text, capacity) in [
        ("2097152", Bytes::kib(1792)),
        ("1048576", Bytes::kib(896)),
        ("4194304", Bytes::kib(3584)),
        ("1", Bytes::kib(64)),
        ("max", Bytes::mib(4)),
    ] {
        limit(text);
        assert_eq!(hw.cgroup_tick(), Ok(capacity), "{text}");
        assert_eq!((hw.capacity(), hw.frames()), (capacity, capacity), "{text}");
        assert!(hw.root().usage_precise() <= capacity, "{text}");
        hw.check_invariants();
    }
    // The requested capacity applies if the limit allows it, and is remembered otherwise.
    limit("2097152");
    hw.set_capacity(Bytes::mib(3)).unwrap();
    assert_eq!(hw.capacity(), Bytes::kib(1792));
    hw.set_capacity(Bytes::mib(1)).unwrap();
    assert_eq!(hw.capacity(), Bytes::mib(1));
    hw.set_capacity(Bytes::mib(3)).unwrap();
    limit("max");
    assert_eq!(hw.cgroup_tick(), Ok(Bytes::mib(3)));
}

#[test]
fn a_capacity_that_follows_is_below_the_limit_from_the_start() {
    let system = System::v2();
    system.write("sys/fs/cgroup/memory.max", "1048576");
    let builder = Manager::builder().memcg(system.memcg()).follow_cgroup();
    let hw = builder.clone().capacity(Bytes::mib(64)).build().unwrap();
    assert_eq!(
        (hw.capacity(), hw.frames()),
        (Bytes::kib(896), Bytes::kib(896))
    );
    assert_eq!(hw.capacity_max(), Bytes::mib(64));
    // Without frames, too.
    let accounts = builder
        .capacity(Bytes::gib(64))
        .frames(Bytes(0))
        .build()
        .unwrap();
    assert_eq!(accounts.capacity(), Bytes::kib(896));
    let charge = accounts.root().charge(Bytes::kib(800)).unwrap();
    system.write("sys/fs/cgroup/memory.max", "524288");
    let above = accounts.cgroup_tick().unwrap_err();
    assert!(above.to_string().contains("352 KiB more"), "{above}");
    accounts
        .cgroup_tick()
        .expect_err("as long as usage is above it");
    drop(charge);
    assert_eq!(accounts.cgroup_tick(), Ok(Bytes::kib(448)));
}

#[test]
fn the_background_thread_follows_the_limit() {
    let system = System::v2();
    let hw = Manager::builder()
        .capacity(Bytes::mib(4))
        .follow_cgroup()
        .background(Background::Thread)
        .memcg(system.memcg())
        .build()
        .unwrap();
    assert_eq!(hw.capacity(), Bytes::mib(4));
    system.write("sys/fs/cgroup/a/b/memory.max", "2097152");
    // The thread checks every second; a busy machine may take longer.
    for _ in 0..6000 {
        if hw.frames() == Bytes::kib(1792) {
            return;
        }
        thread::sleep(Duration::from_millis(10));
    }
    panic!("a capacity of {} after a minute", hw.capacity());
}
