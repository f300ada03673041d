//! Topologies from text, and from fake `/sys` trees: numbering, holes, missing and broken files.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests: a fake tree that cannot be written fails the test"
)]

use std::collections::BTreeMap;
use std::fs;
use std::rc::Rc;

use tempfile::TempDir;

use super::*;

/// A machine to lay out: sockets of LLCs of cores of threads, numbered as Linux does on x86: the
/// first threads of all cores, then the second ones.
#[derive(Clone, Copy)]
pub(super) struct Machine {
    pub(super) sockets: usize,
    pub(super) llcs: usize,
    pub(super) cores: usize,
    pub(super) threads: usize,
}

impl Machine {
    fn nr_cores(self) -> usize {
        self.sockets * self.llcs * self.cores
    }

    pub(super) fn nr_cpus(self) -> usize {
        self.nr_cores() * self.threads
    }

    /// Returns the CPU numbers of the threads of the cores in `cores`.
    fn cpus_of(self, cores: std::ops::Range<usize>) -> String {
        let mut cpus: Vec<usize> = (0..self.threads)
            .flat_map(|thread| {
                cores
                    .clone()
                    .map(move |core| thread * self.nr_cores() + core)
            })
            .collect();
        cpus.sort_unstable();
        let cpus: Vec<String> = cpus.iter().map(ToString::to_string).collect();
        cpus.join(",")
    }

    /// Returns the files that Linux shows for it.
    pub(super) fn files(self) -> BTreeMap<String, Rc<str>> {
        let all: Rc<str> = format!("0-{}", self.nr_cpus() - 1).into();
        let mut files = BTreeMap::from([("possible", &all), ("online", &all)].map(own));
        for llc in 0..self.nr_cores() / self.cores {
            let cores = llc * self.cores..(llc + 1) * self.cores;
            let sharers = self.cpus_of(cores.clone()).into();
            for core in cores {
                let siblings = self.cpus_of(core..core + 1).into();
                for thread in 0..self.threads {
                    let cpu = thread * self.nr_cores() + core;
                    self.describe(&mut files, cpu, &siblings, &sharers);
                }
            }
        }
        files
    }

    fn describe(
        self,
        files: &mut BTreeMap<String, Rc<str>>,
        cpu: usize,
        siblings: &Rc<str>,
        sharers: &Rc<str>,
    ) {
        let llc = cpu % self.nr_cores() / self.cores;
        let mut file = |name: &str, text: &Rc<str>| {
            files.insert(format!("cpu{cpu}/{name}"), Rc::clone(text));
        };
        let socket = (llc / self.llcs).to_string().into();
        file("topology/physical_package_id", &socket);
        file("topology/thread_siblings_list", siblings);
        let caches = [
            ("1", siblings),
            ("1", siblings),
            ("2", siblings),
            ("3", sharers),
        ];
        for (index, (level, shared)) in caches.into_iter().enumerate() {
            file(&format!("cache/index{index}/level"), &level.into());
            file(&format!("cache/index{index}/shared_cpu_list"), shared);
        }
    }

    fn lay_out(self) -> TempDir {
        let root = tempfile::tempdir().unwrap();
        for (name, text) in self.files() {
            write(&root, &name, &text);
        }
        root
    }
}

fn own((name, text): (&str, &Rc<str>)) -> (String, Rc<str>) {
    (name.to_owned(), Rc::clone(text))
}

pub(super) const SERVER: Machine = Machine {
    sockets: 2,
    llcs: 3,
    cores: 4,
    threads: 2,
};

fn write(root: &TempDir, name: &str, text: &str) {
    let path = root.path().join(name);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, format!("{text}\n")).unwrap();
}

fn detect(root: &TempDir) -> Topology {
    let topology = Topology::detect_from(root.path());
    assert_eq!(topology.kind(), TopologyKind::Detected);
    assert_positions_are_a_permutation(&topology);
    topology
}

pub(super) fn assert_positions_are_a_permutation(topology: &Topology) {
    let mut positions: Vec<usize> = (0..topology.nr_cpus())
        .map(|cpu| topology.position(CpuId::from_index(cpu)))
        .collect();
    positions.sort_unstable();
    assert!(positions.into_iter().eq(0..topology.nr_cpus()));
}

/// Returns whether CPU numbers are positions, as in a flat topology.
fn is_flat(topology: &Topology) -> bool {
    (0..topology.nr_cpus()).all(|cpu| topology.position(CpuId::from_index(cpu)) == cpu)
        && topology.to_string().contains("1 socket, 1 LLC,")
}

// Goal: neighbours in position share caches although Linux numbers siblings n/2 apart.
// Method: a fake machine with known places; sibling, cache and socket must be rank divisions.
#[test]
fn siblings_numbered_far_apart_are_neighbours_in_position() {
    let topology = detect(&SERVER.lay_out());
    assert_eq!(topology.nr_cpus(), 48);
    let cores = SERVER.nr_cores();
    for cpu in 0..SERVER.nr_cpus() {
        let position = topology.position(CpuId::from_index(cpu));
        assert_eq!(position, cpu % cores * 2 + cpu / cores, "CPU {cpu}");
    }
    assert_eq!(
        topology.to_string(),
        "48 CPUs: 2 sockets, 6 LLCs, 24 cores (detected)"
    );
}

// Goal: each file that detection reads may be missing or broken, and detection still answers.
// Method: break one file at a time in every way, including being a directory. CPU 4 is the first
// of its core and of its cache, so that each of its files is read.
#[test]
fn a_broken_file_degrades_to_a_flat_topology_over_the_known_cpus() {
    let root = SERVER.lay_out();
    for name in [
        "online",
        "cpu4/topology/physical_package_id",
        "cpu4/topology/thread_siblings_list",
        "cpu4/cache/index0/level",
        "cpu4/cache/index3/level",
        "cpu4/cache/index3/shared_cpu_list",
    ] {
        let path = root.path().join(name);
        let intact = fs::read(&path).unwrap();
        for garbage in ["", "zero", "0-", "3-1", "1,1", "0-99999999999", "47-48"] {
            fs::write(&path, garbage).unwrap();
            let topology = detect(&root);
            assert_eq!(topology.nr_cpus(), 48, "{name} = `{garbage}`");
            assert!(is_flat(&topology), "{name} = `{garbage}`");
        }
        fs::remove_file(&path).unwrap();
        assert!(is_flat(&detect(&root)), "{name} missing");
        fs::create_dir(&path).unwrap();
        assert!(is_flat(&detect(&root)), "{name} is a directory");
        fs::remove_dir(&path).unwrap();
        fs::write(&path, intact).unwrap();
        assert!(!is_flat(&detect(&root)), "{name} is intact again");
    }
    for cpu in 0..SERVER.nr_cpus() {
        fs::remove_dir_all(root.path().join(format!("cpu{cpu}/cache"))).unwrap();
    }
    assert!(is_flat(&detect(&root)), "no caches described");
}

// Goal: detection works even without CPU numbers. Method: remove or break the list of possible
// CPUs; the process's own parallelism remains.
#[test]
fn without_cpu_numbers_the_available_parallelism_counts() {
    let parallelism = std::thread::available_parallelism().unwrap().get();
    let root = SERVER.lay_out();
    for garbage in ["", "all", "0-65536", "1-0", "0,0", "4294967296"] {
        write(&root, "possible", garbage);
        let topology = detect(&root);
        assert!(is_flat(&topology), "`{garbage}`");
        assert_eq!(topology.nr_cpus(), parallelism, "`{garbage}`");
    }
    let nowhere = Topology::detect_from(Path::new("/nonexistent"));
    assert!(is_flat(&nowhere));
    assert_eq!(nowhere.nr_cpus(), parallelism);
}

// Goal: offline CPUs, and unused numbers, cost only their array element, and above the last online
// CPU not even that. Method: take CPUs offline as Linux shows it (their description vanishes), add
// holes.
#[test]
fn offline_cpus_and_holes_rank_last() {
    let root = SERVER.lay_out();
    write(&root, "possible", "0-47,60");
    write(&root, "online", "0-6,8-47");
    fs::remove_dir_all(root.path().join("cpu7")).unwrap();
    let topology = detect(&root);
    assert_eq!((topology.nr_cpus(), topology.nr_online()), (48, 47));
    assert_eq!(topology.position(CpuId(7)), 47);
    // The other thread of the offline CPU's core still has that core's place.
    assert_eq!(topology.position(CpuId(31)), 14);
}

// Goal: a virtual machine with room to grow pays for the CPUs that it has. Method: 48 CPUs of 1,024
// possible are online, then 4 of them.
#[test]
fn room_for_cpus_that_are_not_there_costs_nothing() {
    let root = SERVER.lay_out();
    write(&root, "possible", "0-1023");
    for (online, nr_cpus) in [("0-47", 48), ("0-3", 4)] {
        write(&root, "online", online);
        let topology = detect(&root);
        assert_eq!(
            (topology.nr_cpus(), topology.nr_online()),
            (nr_cpus, nr_cpus)
        );
    }
}

// Symptom: a virtual machine with room to grow and without a description of its caches paid for all
// 1,024 CPUs that it could have. Method: as above, with a broken file, and without caches.
#[test]
fn a_flat_topology_is_over_the_cpus_that_are_online() {
    let root = SERVER.lay_out();
    write(&root, "possible", "0-1023");
    write(&root, "online", "0-3");
    write(&root, "cpu0/cache/index3/level", "three");
    let broken = detect(&root);
    for cpu in 0..SERVER.nr_cpus() {
        fs::remove_dir_all(root.path().join(format!("cpu{cpu}/cache"))).unwrap();
    }
    for topology in [broken, detect(&root)] {
        assert_eq!((topology.nr_cpus(), topology.nr_online()), (4, 4));
        assert!(is_flat(&topology), "{topology}");
    }
}

// Symptom: CPUs without a description of their caches were taken for offline, and the last ones
// were cut off. Method: the last cache is not described, and one CPU beside another thread that is.
#[test]
fn a_cpu_without_a_description_of_its_caches_keeps_its_core() {
    let root = SERVER.lay_out();
    let expected = detect(&root);
    for cpu in [5, 20, 21, 22, 23, 44, 45, 46, 47] {
        fs::remove_dir_all(root.path().join(format!("cpu{cpu}/cache"))).unwrap();
    }
    let topology = detect(&root);
    let counts = (topology.nr_cpus(), topology.nr_online());
    assert_eq!(counts, (SERVER.nr_cpus(), SERVER.nr_cpus()));
    let numbers = || (0..SERVER.nr_cpus()).map(CpuId::from_index);
    for (one, other) in numbers().flat_map(|one| numbers().map(move |other| (one, other))) {
        let is_last = |cpu: CpuId| cpu.index() % SERVER.nr_cores() >= 20;
        let shared = match expected.sharing(one, other) {
            Sharing::Llc if is_last(one) => Sharing::Socket,
            shared => shared,
        };
        assert_eq!(topology.sharing(one, other), shared, "{one:?}, {other:?}");
    }
}

// Goal: the machine that runs the test can be detected at all.
// Method: the scheduler's own number of this CPU must be inside.
#[test]
fn this_machine_is_detected() {
    let topology = Topology::detect();
    assert_positions_are_a_permutation(&topology);
    let parallelism = std::thread::available_parallelism().unwrap().get();
    assert!(topology.nr_cpus() >= parallelism, "{topology}");
}

// Goal: the grammar is accepted exactly, and errors explain it. Method: valid texts with their
// counts, invalid ones with their message.
#[test]
fn text_describes_a_synthetic_machine() {
    for (text, nr_cpus, shown) in [
        ("1x1x1x1", 1, "1 CPU: 1 socket, 1 LLC, 1 core (synthetic)"),
        (
            "2x12x8x2",
            384,
            "384 CPUs: 2 sockets, 24 LLCs, 192 cores (synthetic)",
        ),
        (
            "65536x1x1x1",
            65536,
            "65536 CPUs: 65536 sockets, 65536 LLCs, 65536 cores (synthetic)",
        ),
        ("1x1x2x2", 4, "4 CPUs: 1 socket, 1 LLC, 2 cores (synthetic)"),
    ] {
        let topology: Topology = text.parse().unwrap();
        assert_eq!(topology.nr_cpus(), nr_cpus);
        assert_eq!(topology.kind(), TopologyKind::Synthetic);
        assert_eq!(topology.to_string(), shown);
        assert!((0..nr_cpus).all(|cpu| topology.position(CpuId::from_index(cpu)) == cpu));
    }
}

// Goal: all other texts are rejected, with an error that names the text and shows the grammar.
// Method: near misses, and products that are too large or overflow.
#[test]
fn other_text_is_refused_with_the_grammar() {
    for text in [
        "",
        "8",
        "x",
        "xxx",
        "2x12x8",
        "2x12x8x2x1",
        "2x12x8x0",
        "2X12X8X2",
        " 2x12x8x2",
        "2x12x8x2 ",
        "2x12x8x-2",
        "+2x12x8x2",
        "2x12x8x2.0",
        "2*12*8*2",
        "axbxcxd",
        "2x12xx2",
        "२x1x1x1",
    ] {
        let error = text.parse::<Topology>().unwrap_err();
        assert!(matches!(error, ParseTopologyError::Malformed { .. }));
        let message = error.to_string();
        assert!(message.starts_with(&format!("`{text}` ")), "{message}");
        assert!(message.contains("SOCKETSxLLCSxCORESxTHREADS"), "{message}");
        assert!(message.contains("2x12x8x2"), "{message}");
    }
    for text in [
        "65537x1x1x1",
        "256x256x1x2",
        "99999999999999999999x1x1x1",
        "4294967296x4294967296x1x1",
    ] {
        let error = text.parse::<Topology>().unwrap_err();
        assert!(matches!(error, ParseTopologyError::TooManyCpus { .. }));
        let message = error.to_string();
        assert!(message.starts_with(&format!("`{text}` ")), "{message}");
        assert!(message.contains("65536"), "{message}");
    }
}

#[test]
#[should_panic(expected = "a topology has 1 to 65536 CPUs, not 0")]
fn a_flat_topology_of_no_cpus_is_a_mistake() {
    let _ = Topology::flat(0);
}

/// Goal: sharing does not depend on CPU numbers. Method: one pair for each distance, on a machine
/// from text, where threads of a core are neighbours, and on one as Linux numbers it.
#[test]
fn cpus_share_the_smallest_part_that_holds_both() {
    let pairs = |topology: &Topology, others: [u32; 5]| {
        others.map(|other| topology.sharing(CpuId(0), CpuId(other)))
    };
    let distances = [
        Sharing::Cpu,
        Sharing::Core,
        Sharing::Llc,
        Sharing::Socket,
        Sharing::Machine,
    ];
    let text: Topology = "2x2x2x2".parse().unwrap();
    assert_eq!(pairs(&text, [0, 1, 2, 4, 8]), distances);
    assert_eq!(text.sharing(CpuId(15), CpuId(14)), Sharing::Core);
    let machine = Machine {
        sockets: 2,
        llcs: 2,
        cores: 2,
        threads: 2,
    };
    let system = Topology::detect_from(machine.lay_out().path());
    assert_eq!(pairs(&system, [0, 8, 1, 2, 4]), distances);
}

/// Returns a machine of sockets, caches and cores of random sizes as the place of each CPU number;
/// `None` for numbers of no CPU. Numbers are dealt at random.
fn random_machine(random: &mut fastrand::Rng) -> Vec<Option<CpuPlace>> {
    let mut places = Vec::new();
    let (mut llc, mut core) = (0, 0);
    for socket in 0..random.i64(1..4) {
        for _ in 0..random.usize(1..4) {
            for _ in 0..random.usize(1..4) {
                let place = CpuPlace { socket, llc, core };
                places.extend(vec![Some(place); random.usize(1..4)]);
                core += 1;
            }
            llc += 1;
        }
    }
    places.extend(vec![None; random.usize(..4)]);
    random.shuffle(&mut places);
    places
}

/// Returns the numbers of the CPUs whose place has the same `part` as that of `cpu`, as a list.
fn list_of<T: PartialEq>(
    places: &[Option<CpuPlace>],
    cpu: usize,
    part: impl Fn(&CpuPlace) -> T,
) -> String {
    let part_of = |cpu: usize| places[cpu].as_ref().map(&part);
    let alike = (0..places.len()).filter(|&other| part_of(other) == part_of(cpu));
    let alike: Vec<String> = alike.map(|other| other.to_string()).collect();
    alike.join(",")
}

impl Files for BTreeMap<String, String> {
    fn read(&self, name: &str) -> std::io::Result<String> {
        let text = self.get(name).ok_or(std::io::ErrorKind::NotFound)?;
        Ok(text.clone())
    }

    fn has(&self, name: &str) -> bool {
        let directory = format!("{name}/");
        self.contains_key(name) || self.keys().any(|file| file.starts_with(&directory))
    }
}

/// Returns the files of a machine; the index of a cache does not tell its level.
fn files_of(places: &[Option<CpuPlace>], random: &mut fastrand::Rng) -> BTreeMap<String, String> {
    let online = (0..places.len()).filter(|&cpu| places[cpu].is_some());
    let online: Vec<String> = online.map(|cpu| cpu.to_string()).collect();
    let mut files = BTreeMap::from([
        ("online".into(), online.join(",")),
        ("possible".into(), format!("0-{}", places.len() - 1)),
    ]);
    for (cpu, place) in places.iter().enumerate() {
        let Some(CpuPlace { socket, .. }) = place else {
            continue;
        };
        let siblings = list_of(places, cpu, |place| place.core);
        let sharers = list_of(places, cpu, |place| place.llc);
        let mut file = |name: &str, text: &str| {
            files.insert(format!("cpu{cpu}/{name}"), format!("{text}\n"));
        };
        file("topology/physical_package_id", &socket.to_string());
        file("topology/thread_siblings_list", &siblings);
        let mut caches = [("1", &siblings), ("2", &siblings), ("3", &sharers)];
        random.shuffle(&mut caches);
        for (index, (level, shared)) in caches.iter().enumerate() {
            file(&format!("cache/index{index}/level"), level);
            file(&format!("cache/index{index}/shared_cpu_list"), shared);
        }
    }
    files
}

// Goal: however CPUs are numbered, the position is the rank by socket, last-level cache, core and
// thread, and two CPUs share the smallest part that has both. Method: random machines with random
// numbers, holes and orders of caches; groups of the reference are those of its lowest CPU.
#[test]
fn positions_are_ranks_whatever_the_numbers_are() {
    let mut random = crate::seed::rng(71);
    for _ in 0..30 {
        let places = random_machine(&mut random);
        let topology = Topology::detect_from(&files_of(&places, &mut random));
        assert_positions_are_a_permutation(&topology);
        let cpus = || (0..places.len()).filter(|&cpu| places[cpu].is_some());
        let lowest = |cpu: usize, is_in: &dyn Fn(&CpuPlace) -> bool| {
            let is_in = |other: &usize| places[*other].as_ref().is_some_and(is_in);
            cpus().find(is_in).unwrap_or(cpu)
        };
        let mut order: Vec<usize> = cpus().collect();
        order.sort_by_key(|&cpu| {
            let CpuPlace { socket, llc, core } = places[cpu].unwrap();
            let first_of_llc = lowest(cpu, &|other| other.llc == llc);
            (
                socket,
                first_of_llc,
                lowest(cpu, &|other| other.core == core),
                cpu,
            )
        });
        let positions = order
            .iter()
            .map(|&cpu| topology.position(CpuId::from_index(cpu)));
        assert!(positions.eq(0..order.len()), "{places:?}");
        assert_eq!(topology.nr_online(), order.len());
        for (one, other) in cpus().flat_map(|one| cpus().map(move |other| (one, other))) {
            let (a, b) = (places[one].unwrap(), places[other].unwrap());
            let expected = match (a.socket == b.socket, a.llc == b.llc, a.core == b.core) {
                _ if one == other => Sharing::Cpu,
                (_, _, true) => Sharing::Core,
                (_, true, _) => Sharing::Llc,
                (true, ..) => Sharing::Socket,
                _ => Sharing::Machine,
            };
            let shared = topology.sharing(CpuId::from_index(one), CpuId::from_index(other));
            assert_eq!(shared, expected, "CPUs {one} and {other} of {places:?}");
        }
    }
}

// Goal: a CPU without a known place shares the machine with all others and itself with itself, and
// so does one that is beyond those that are known. Method: a hole in the numbering, and numbers
// from the first unknown one to the last of all.
#[test]
fn a_cpu_without_a_place_shares_nothing_smaller_than_the_machine() {
    let topology = Topology::with_offline(4, &[2]);
    assert_eq!((topology.nr_cpus(), topology.nr_online()), (4, 3));
    assert_eq!(topology.position(CpuId(2)), 3, "after all that are known");
    for cpu in [2, 4, 5, u32::MAX].map(CpuId) {
        assert_eq!(topology.sharing(cpu, cpu), Sharing::Cpu);
        for other in [0, 1, 3].map(CpuId) {
            assert_eq!(topology.sharing(cpu, other), Sharing::Machine);
            assert_eq!(topology.sharing(other, cpu), Sharing::Machine);
        }
    }
    assert_eq!(topology.sharing(CpuId(0), CpuId(3)), Sharing::Llc);
}

// Goal: texts as wide as a topology may be keep every level apart. Method: all ways to write the
// maximum as four powers of two, whose counts are products; one factor doubled is too much.
#[test]
fn the_widest_machines_have_the_counts_of_their_text() {
    for (sockets, llcs, cores) in [(0, 0, 0), (16, 0, 0), (0, 16, 0), (1, 2, 12), (4, 4, 4)] {
        let threads = 16 - sockets - llcs - cores;
        let factors = [sockets, llcs, cores, threads].map(|power: u32| 1 << power);
        let text = factors.map(|factor: usize| factor.to_string()).join("x");
        let topology: Topology = text.parse().unwrap();
        let [nr_sockets, nr_llcs, nr_cores, _] = factors;
        let counts = [
            nr_sockets,
            nr_sockets * nr_llcs,
            nr_sockets * nr_llcs * nr_cores,
        ];
        let shown = topology.to_string();
        let numbers = shown.split(|c: char| !c.is_ascii_digit());
        let numbers: Vec<usize> = numbers.filter_map(|digits| digits.parse().ok()).collect();
        assert_eq!(numbers[..], [&[CPUS_MAX][..], &counts].concat(), "{shown}");
        for doubled in 0..4 {
            let mut factors = factors;
            factors[doubled] *= 2;
            let text = factors.map(|factor| factor.to_string()).join("x");
            let refused = ParseTopologyError::TooManyCpus { text: text.clone() };
            assert_eq!(text.parse::<Topology>().unwrap_err(), refused);
        }
    }
}
