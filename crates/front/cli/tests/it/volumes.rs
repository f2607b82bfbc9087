//! The volume plugin, asked over its socket as Docker does.
//!
//! Needs root and `/dev/fuse`.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};

/// A plugin, and the directory of its files.
struct Plugin {
    home: tempfile::TempDir,
    process: Child,
}

impl Plugin {
    fn new() -> Self {
        let home = tempfile::tempdir_in("/dev/shm").unwrap();
        let process = Self::start(home.path());
        Self { home, process }
    }

    /// Starts the process, and waits until it serves.
    fn start(home: &Path) -> Child {
        let mut process = Self::command(home).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(process.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.contains("are served"), "{line}");
        process
    }

    fn command(home: &Path) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_keepstone"));
        command.arg("volumes").arg("--dir").arg(home.join("volumes"));
        command.arg("--socket").arg(home.join("keepstone.sock"));
        command.arg("--memory").arg(home.join("memory"));
        command
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    fn restart(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        self.process = Self::start(self.home.path());
    }

    /// Sends bytes; returns the status and the body of the answer.
    fn send(&self, request: &[u8]) -> (u16, String) {
        let mut stream = UnixStream::connect(self.path("keepstone.sock")).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, body.to_owned())
    }

    fn ask(&self, call: &str, body: &Value) -> (u16, Value) {
        let body = body.to_string();
        let request = format!(
            "POST /{call} HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        let (status, answer) = self.send(request.as_bytes());
        (status, serde_json::from_str(&answer).unwrap_or_else(|_| panic!("{answer}")))
    }

    /// Asks what must be granted.
    fn ok(&self, call: &str, body: Value) -> Value {
        let (status, answer) = self.ask(call, &body);
        assert_eq!(status, 200, "{call} {body}: {answer}");
        answer
    }

    /// Asks what must be refused; returns the reason.
    fn refused(&self, call: &str, body: Value) -> String {
        let (status, answer) = self.ask(call, &body);
        assert_eq!(status, 500, "{call} {body}: {answer}");
        answer["Err"].as_str().unwrap().to_owned()
    }

    fn create(&self, name: &str, opts: Value) {
        self.ok("VolumeDriver.Create", json!({ "Name": name, "Opts": opts }));
    }

    fn mount(&self, name: &str, id: &str) -> PathBuf {
        let answer = self.ok("VolumeDriver.Mount", json!({ "Name": name, "ID": id }));
        PathBuf::from(answer["Mountpoint"].as_str().unwrap())
    }

    fn unmount(&self, name: &str, id: &str) {
        self.ok("VolumeDriver.Unmount", json!({ "Name": name, "ID": id }));
    }

    fn is_mounted(&self, name: &str) -> bool {
        let volume = self.ok("VolumeDriver.Get", json!({ "Name": name }))["Volume"].clone();
        let path = self.ok("VolumeDriver.Path", json!({ "Name": name }));
        assert_eq!(volume["Mountpoint"], path["Mountpoint"]);
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let is_mounted =
            mounts.contains(&format!("{}/volumes/{name}/data ", self.home.path().display()));
        assert_eq!(volume["Mountpoint"] != "", is_mounted, "{volume}");
        is_mounted
    }

    fn names(&self) -> Vec<String> {
        let answer = self.ok("VolumeDriver.List", json!({}));
        let volumes = answer["Volumes"].as_array().unwrap();
        volumes.iter().map(|volume| volume["Name"].as_str().unwrap().to_owned()).collect()
    }
}

impl Drop for Plugin {
    fn drop(&mut self) {
        // A test that fails leaves no mount behind.
        let volumes = fs::read_dir(self.path("volumes")).into_iter().flatten().flatten();
        for volume in volumes {
            let umount = Command::new(env!("CARGO_BIN_EXE_keepstone"))
                .arg("umount")
                .arg(volume.path().join("data"))
                .output();
            drop(umount);
        }
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn a_volume_is_mounted_while_it_has_users() {
    let mut plugin = Plugin::new();
    let implements = plugin.ok("Plugin.Activate", json!({}));
    assert_eq!(implements, json!({ "Implements": ["VolumeDriver"] }));
    let scope = plugin.ok("VolumeDriver.Capabilities", json!({}));
    assert_eq!(scope["Capabilities"]["Scope"], "local");
    plugin.create("db", json!({ "size": "64M", "layout": "scmfs" }));
    plugin.create("db", json!({ "size": "64M", "layout": "scmfs" }));
    plugin.create("db", Value::Null);
    let other = json!({ "Name": "db", "Opts": { "size": "32M" } });
    assert!(plugin.refused("VolumeDriver.Create", other).contains("other options"));
    assert!(!plugin.is_mounted("db"));

    let dir = plugin.mount("db", "one");
    assert_eq!(fs::metadata(&dir).unwrap().mode() & 0o777, 0o755, "programs of any user get in");
    fs::write(dir.join("file"), "content").unwrap();
    assert_eq!(plugin.mount("db", "two"), dir);
    let name = json!({ "Name": "db" });
    assert!(plugin.refused("VolumeDriver.Remove", name.clone()).contains("in use"));
    plugin.unmount("db", "one");
    plugin.unmount("db", "one");
    assert!(plugin.is_mounted("db"));

    // The mount, and its user, outlive the plugin.
    plugin.restart();
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "content");
    assert_eq!(plugin.names(), ["db"]);
    plugin.unmount("db", "two");
    assert!(!plugin.is_mounted("db"));
    plugin.mount("db", "three");
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "content");
    plugin.unmount("db", "three");
    plugin.ok("VolumeDriver.Remove", name.clone());
    assert!(plugin.names().is_empty());
    assert!(plugin.refused("VolumeDriver.Get", name).contains("no volume db"));
    assert_eq!(fs::read_dir(plugin.path("volumes")).unwrap().count(), 0);
}

#[test]
fn a_volume_in_memory_is_saved() {
    let plugin = Plugin::new();
    plugin.create("ram", json!({ "size": "32M", "save": "true", "thin": "true" }));
    let dir = plugin.mount("ram", "one");
    assert!(plugin.path("memory/ram").exists());
    fs::write(dir.join("file"), "content").unwrap();
    plugin.unmount("ram", "one");
    assert!(!plugin.path("memory/ram").exists(), "its memory is free");
    plugin.mount("ram", "two");
    assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "content");
    plugin.unmount("ram", "two");
    plugin.ok("VolumeDriver.Remove", json!({ "Name": "ram" }));
    assert!(plugin.names().is_empty());
}

#[test]
fn wrong_requests_are_refused() {
    let plugin = Plugin::new();
    for name in ["../evil", "a/b", "", ".hidden", &"x".repeat(200)] {
        for call in ["Create", "Remove", "Get", "Path"] {
            let why = plugin.refused(&format!("VolumeDriver.{call}"), json!({ "Name": name }));
            assert!(why.contains("names of volumes"), "{why}");
        }
        let body = json!({ "Name": name, "ID": "one" });
        assert!(plugin.refused("VolumeDriver.Mount", body).contains("names of volumes"));
    }
    let create =
        |opts: Value| plugin.refused("VolumeDriver.Create", json!({ "Name": "a", "Opts": opts }));
    assert!(create(json!({ "o": "suid" })).contains("not one of"));
    assert!(create(json!({ "size": "1" })).contains("mkfs"));
    assert!(plugin.names().is_empty());
    assert_eq!(fs::read_dir(plugin.path("volumes")).unwrap().count(), 0);
    plugin.create("a", json!({ "size": "32M" }));
    let long = json!({ "Name": "a", "ID": "x".repeat(200) });
    assert!(plugin.refused("VolumeDriver.Mount", long).contains("valid length"));
    assert!(plugin.refused("VolumeDriver.Create", json!([1])).contains("JSON"));

    let status = |request: &str| plugin.send(request.as_bytes()).0;
    let tail = "HTTP/1.1\r\nHost: plugin\r\nConnection: close\r\n";
    assert_eq!(status(&format!("GET /VolumeDriver.List {tail}\r\n")), 405);
    assert_eq!(status(&format!("POST /VolumeDriver.Frob {tail}Content-Length: 0\r\n\r\n")), 404);
    let big = format!("POST /VolumeDriver.List {tail}Content-Length: 70000\r\n\r\n");
    assert_eq!(status(&(big + &" ".repeat(70_000))), 413);
    // It still serves.
    assert_eq!(plugin.names(), ["a"]);
}

#[test]
fn only_its_user_reaches_the_plugin() {
    let plugin = Plugin::new();
    let mode = |name: &str| fs::metadata(plugin.path(name)).unwrap().mode() & 0o777;
    assert_eq!(mode("keepstone.sock"), 0o600);
    assert_eq!((mode("volumes"), mode("memory")), (0o700, 0o700));
    let second = Plugin::command(plugin.home.path()).output().unwrap();
    let why = String::from_utf8_lossy(&second.stderr);
    assert!(!second.status.success() && why.contains("another process"), "{why}");

    let open = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::create_dir(open.path().join("volumes")).unwrap();
    fs::set_permissions(open.path().join("volumes"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = Plugin::command(open.path()).output().unwrap();
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && why.contains("other users may change it"), "{why}");
}
