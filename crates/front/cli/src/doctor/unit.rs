//! `keepstone doctor UNIT`: reports which settings of a service of systemd keep it from using
//! pools, by the files of the unit.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use fuse::MountEntry;

use super::Report;
use crate::run;

/// Directories of unit files, those that win first (systemd.unit(5)).
const UNIT_DIRS: [&str; 5] = [
    "/etc/systemd/system",
    "/run/systemd/system",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/lib/systemd/system",
];

/// The subject of findings.
const SUBJECT: &str = "unit";

/// Returns whether a target of `doctor` is a service.
pub fn is_unit(target: &Path) -> bool {
    target.extension().is_some_and(|ending| ending == "service")
}

/// Examines a service: the name of a unit, or the path of its file.
pub fn examine(report: &mut Report, target: &Path, pools: &[MountEntry]) {
    let text = match read(target, &UNIT_DIRS.map(Path::new)) {
        Ok(text) => text,
        Err(err) => return report.missing(SUBJECT, format!("{err:#}"), ""),
    };
    let unit = Unit::parse(&text);
    let before = report.findings.len();
    let library = run::library().ok();
    let program = std::env::current_exe().ok();
    for path in program.iter().chain(&library) {
        unit.executes(report, path);
    }
    unit.identity(report);
    // The pools that the unit names, or all if it names none.
    let named: Vec<_> = pools.iter().filter(|pool| unit.names(&pool.dir)).collect();
    let all: Vec<_> = if named.is_empty() { pools.iter().collect() } else { named };
    for pool in all {
        unit.uses(report, pool);
    }
    if report.findings.len() == before {
        report.ok(SUBJECT, format!("{}: no setting keeps it from pools", target.display()));
    }
}

/// Reads the files of a unit, one after the other: its own and its drop-ins.
fn read(target: &Path, dirs: &[&Path]) -> Result<String> {
    if target.components().count() > 1 {
        return fs::read_to_string(target).with_context(|| target.display().to_string());
    }
    let name = target.to_string_lossy();
    // Of an instance, also the files of its template.
    let template = name.split_once('@').map(|(stem, _)| format!("{stem}@.service"));
    let names = [Some(name.to_string()), template];
    let own = names.iter().flatten().flat_map(|name| dirs.iter().map(move |dir| dir.join(name)));
    let mut text = own
        .into_iter()
        .find_map(|path| fs::read_to_string(path).ok())
        .with_context(|| format!("{name}: no such unit in {}", UNIT_DIRS.join(", ")))?;
    // Drop-ins of a name in the first directory replace those in later ones.
    let mut drop_ins = BTreeMap::new();
    for (dir, name) in dirs.iter().flat_map(|dir| names.iter().flatten().map(move |n| (dir, n))) {
        let entries = fs::read_dir(dir.join(format!("{name}.d"))).into_iter().flatten().flatten();
        for entry in entries.filter(|entry| entry.path().extension().is_some_and(|e| e == "conf")) {
            drop_ins.entry(entry.file_name()).or_insert(entry.path());
        }
    }
    for path in drop_ins.values() {
        text += "\n";
        text += &fs::read_to_string(path).with_context(|| path.display().to_string())?;
    }
    Ok(text)
}

/// The settings of a unit, in the order of its files.
struct Unit(Vec<(String, String)>);

impl Unit {
    fn parse(text: &str) -> Self {
        let joined = text.replace("\\\n", " ");
        let lines = joined.lines().map(str::trim).filter(|line| !line.starts_with(['#', ';']));
        let settings = lines.filter_map(|line| line.split_once('='));
        Self(settings.map(|(key, value)| (key.trim().into(), value.trim().into())).collect())
    }

    /// Returns the last value of a setting.
    fn value(&self, name: &str) -> &str {
        let found = self.0.iter().rev().find(|(key, _)| key == name);
        found.map_or("", |(_, value)| value)
    }

    fn is_set(&self, name: &str) -> bool {
        ["yes", "true", "on", "1"].contains(&self.value(name))
    }

    /// Returns the words of a setting that is a list. An empty value begins the list again.
    fn list(&self, name: &str) -> Vec<&str> {
        let mut words = Vec::new();
        for (_, value) in self.0.iter().filter(|(key, _)| key == name) {
            if value.is_empty() {
                words.clear();
            }
            words.extend(value.split_ascii_whitespace());
        }
        words
    }

    /// Returns the longest path of a list that `path` lies below.
    fn covering(&self, list: &str, path: &Path) -> Option<PathBuf> {
        let paths = self.list(list).into_iter().map(|word| word.trim_start_matches(['-', '+']));
        let covering = paths.map(PathBuf::from).filter(|above| path.starts_with(above));
        covering.max_by_key(|above| above.as_os_str().len())
    }

    /// Returns whether the unit mentions a directory.
    fn names(&self, dir: &Path) -> bool {
        let dir = dir.to_string_lossy();
        self.0.iter().any(|(_, value)| value.contains(&*dir))
    }

    /// Checks that the service may execute a file of Keepstone.
    fn executes(&self, report: &mut Report, path: &Path) {
        let Some(refused) = self.covering("NoExecPaths", path) else { return };
        let allowed = self.covering("ExecPaths", path);
        if allowed.is_some_and(|above| above.as_os_str().len() >= refused.as_os_str().len()) {
            return;
        }
        report.missing(
            SUBJECT,
            format!(
                "NoExecPaths={} keeps {} from being executed",
                refused.display(),
                path.display()
            ),
            &format!("in a drop-in (`systemctl edit`): ExecPaths={}", path.display()),
        );
    }

    /// Checks the settings that change who and where the processes are.
    fn identity(&self, report: &mut Report) {
        if self.is_set("PrivateUsers") {
            report.advice(
                SUBJECT,
                "PrivateUsers=yes hides the owners of pools: their files are used through the mount",
                "PrivateUsers=no",
            );
        }
        if self.is_set("PrivatePIDs") {
            report.advice(
                SUBJECT,
                "PrivatePIDs=yes: processes in another PID namespace use pools through the mount",
                "PrivatePIDs=no",
            );
        }
        for name in ["RootDirectory", "RootImage"] {
            let root = self.value(name);
            if !root.is_empty() && root != "/" {
                let found = format!("{name}={root} hides pools, mounts and `keepstone`");
                report.missing(SUBJECT, found, "BindPaths= of the mount and of /dev/shm");
            }
        }
        if self.value("ProcSubset") == "pid" {
            report.advice(
                SUBJECT,
                "ProcSubset=pid hides tables of the kernel that `keepstone run` reads",
                "ProcSubset=all",
            );
        }
    }

    /// Checks the access to a mounted pool.
    fn uses(&self, report: &mut Report, pool: &MountEntry) {
        let (dir, file) = (&pool.dir, &crate::pool::of_source(pool.source.clone()));
        if let Some(why) = self.hides(dir) {
            report.missing(SUBJECT, format!("{why} hides {}", dir.display()), &remedy(&why));
        } else if let Some(why) = self.makes_read_only(dir) {
            let found = format!("{why} makes {} read-only", dir.display());
            report.missing(SUBJECT, found, &format!("ReadWritePaths={}", dir.display()));
        }
        let obstacle = self.hides(file).map(|why| format!("{why} hides"));
        let obstacle = obstacle
            .or_else(|| Some(format!("{} keeps from being written", self.makes_read_only(file)?)));
        if let Some(why) = obstacle {
            report.advice(
                SUBJECT,
                format!("{why} the pool {}: its files are used through the mount", file.display()),
                &format!("ReadWritePaths={}", file.display()),
            );
        }
        if !self.requires(dir) {
            report.advice(
                SUBJECT,
                format!(
                    "starts also while {0} is not mounted, on the directory below",
                    dir.display()
                ),
                &format!("RequiresMountsFor={}", dir.display()),
            );
        }
    }

    /// Returns whether the service needs the mount of a directory before it starts.
    fn requires(&self, dir: &Path) -> bool {
        let lists = ["RequiresMountsFor", "BindsTo", "Requires"];
        let unit = dir.to_string_lossy().trim_start_matches('/').replace('/', "-") + ".mount";
        let is_meant = |word: &&str| Path::new(word).starts_with(dir) || **word == *unit;
        lists.iter().any(|list| self.list(list).iter().any(is_meant))
            || Path::new(self.value("WorkingDirectory")).starts_with(dir)
    }

    /// Returns the setting that hides a path.
    fn hides(&self, path: &Path) -> Option<String> {
        let is_below = |dirs: &[&str]| dirs.iter().any(|dir| path.starts_with(dir));
        let home = self.value("ProtectHome");
        let places: [(bool, &[&str], String); 3] = [
            (self.is_set("PrivateTmp"), &["/tmp", "/var/tmp"], "PrivateTmp=yes".to_owned()),
            (
                self.is_set("ProtectHome") || home == "tmpfs",
                &["/home", "/root", "/run/user"],
                format!("ProtectHome={home}"),
            ),
            (
                self.is_set("PrivateDevices") && !path.starts_with("/dev/shm"),
                &["/dev"],
                "PrivateDevices=yes".to_owned(),
            ),
        ];
        let place = places.into_iter().find(|(is_set, dirs, _)| *is_set && is_below(dirs));
        let listed = |name: &str| Some(format!("{name}={}", self.covering(name, path)?.display()));
        place
            .map(|(.., setting)| setting)
            .or_else(|| listed("InaccessiblePaths"))
            .or_else(|| listed("TemporaryFileSystem"))
    }

    /// Returns the setting that makes a path read-only.
    fn makes_read_only(&self, path: &Path) -> Option<String> {
        let len = |list: &str| self.covering(list, path).map(|above| above.as_os_str().len());
        if len("ReadWritePaths").is_some() && len("ReadWritePaths") >= len("ReadOnlyPaths") {
            return None;
        }
        if let Some(above) = self.covering("ReadOnlyPaths", path) {
            return Some(format!("ReadOnlyPaths={}", above.display()));
        }
        let is_below = |dirs: &[&str]| dirs.iter().any(|dir| path.starts_with(dir));
        let system = self.value("ProtectSystem");
        let is_protected = match system {
            "strict" => !is_below(&["/dev", "/proc", "/sys"]),
            "full" => is_below(&["/usr", "/boot", "/efi", "/etc"]),
            _ => self.is_set("ProtectSystem") && is_below(&["/usr", "/boot", "/efi"]),
        };
        is_protected.then(|| format!("ProtectSystem={system}"))
    }
}

/// Returns the setting that lifts another one.
fn remedy(setting: &str) -> String {
    let name = setting.split('=').next().unwrap_or_default();
    let none = if name.starts_with("Private") || name == "ProtectHome" { "no" } else { "" };
    format!("in a drop-in (`systemctl edit`): {name}={none}")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of Debian 12's redis-server.service.
    const HARDENED: &str = "[Service]\nNoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib /lib\n\
        PrivateDevices=yes\nPrivateTmp=yes\nPrivateUsers=true\nProtectHome=true\n\
        ProtectSystem=strict\nReadWritePaths=-/var/lib/redis \\\n  -/var/log/redis\n";

    fn pool(dir: &str, source: &str) -> MountEntry {
        MountEntry {
            device: (0, 1),
            dir: dir.into(),
            options: "rw".into(),
            fs_type: "fuse.keepstone".into(),
            source: source.into(),
            user: Some(0),
        }
    }

    fn found(text: &str, pools: &[MountEntry]) -> String {
        let unit = Unit::parse(text);
        let mut report = Report::default();
        unit.executes(&mut report, Path::new("/usr/bin/keepstone"));
        unit.executes(&mut report, Path::new("/usr/lib/libkeepstone.so.0"));
        unit.identity(&mut report);
        pools.iter().for_each(|pool| unit.uses(&mut report, pool));
        let lines = report.findings.iter().map(|f| format!("{} -> {}\n", f.found, f.remedy));
        lines.collect()
    }

    #[test]
    fn hardened_units_are_explained() {
        let pools = [pool("/srv/fast", "/dev/dax0.0")];
        let told = found(HARDENED, &pools);
        for part in [
            "NoExecPaths=/ keeps /usr/bin/keepstone",
            "PrivateUsers",
            "ProtectSystem=strict makes /srv/fast read-only -> ReadWritePaths=/srv/fast",
            "PrivateDevices=yes hides the pool /dev/dax0.0",
            "RequiresMountsFor=/srv/fast",
        ] {
            assert!(told.contains(part), "{part}: {told}");
        }
        assert!(!told.contains("libkeepstone"), "{told}");
    }

    #[test]
    fn drop_ins_lift_what_blocks() {
        let lifted = format!(
            "{HARDENED}ExecPaths=/usr/bin/keepstone\nPrivateUsers=no\nPrivateDevices=no\n\
             ReadWritePaths=/srv/fast /mnt/pmem/pool\n[Unit]\nRequiresMountsFor=/srv/fast\n"
        );
        assert_eq!(found(&lifted, &[pool("/srv/fast", "/mnt/pmem/pool")]), "");
        assert_eq!(
            found("[Service]\nWorkingDirectory=/srv/fast/x\n", &[pool("/srv/fast", "/p")]),
            ""
        );
        let home =
            found("ProtectHome=yes\nRequires=home-a.mount\n", &[pool("/home/a", "/dev/shm/p")]);
        assert_eq!(
            home,
            "ProtectHome=yes hides /home/a -> in a drop-in (`systemctl edit`): ProtectHome=no\n"
        );
    }

    #[test]
    fn units_are_read_with_their_drop_ins() {
        let base = tempfile::tempdir().unwrap();
        let (first, second) = (base.path().join("etc"), base.path().join("lib"));
        fs::create_dir_all(first.join("a@.service.d")).unwrap();
        fs::create_dir_all(second.join("a@x.service.d")).unwrap();
        fs::write(second.join("a@.service"), "A=1\n").unwrap();
        fs::write(first.join("a@.service.d/b.conf"), "B=1\n").unwrap();
        fs::write(second.join("a@x.service.d/b.conf"), "B=2\n").unwrap();
        fs::write(second.join("a@x.service.d/c.conf"), "A=\nA=3\n").unwrap();
        let text = read(Path::new("a@x.service"), &[&first, &second]).unwrap();
        let unit = Unit::parse(&text);
        assert_eq!((unit.list("A"), unit.value("B")), (vec!["3"], "1"));
        assert!(read(Path::new("none.service"), &[&first]).is_err());
    }
}
