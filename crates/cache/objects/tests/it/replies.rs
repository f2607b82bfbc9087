//! A hostile store over HTTP: replies that are endless, too long, or too slow, and redirects.

use objects::{Location, ObjectFs};
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// The answer of a server to a request for an object.
#[derive(Clone, Debug)]
enum Answer {
    /// There is no object.
    Absent,
    /// Endless chunks.
    Endless,
    /// An error with an endless text.
    EndlessError,
    /// A reply whose announced length exceeds the requested one.
    Long,
    /// A redirect to a URL.
    Redirect(String),
    /// Endless headers.
    EndlessHead,
}

/// A server on this machine. It ends with the test.
struct Server {
    port: u16,
    /// The heads of requests.
    requests: Arc<Mutex<Vec<String>>>,
    /// Bytes that the client has received.
    sent: Arc<AtomicU64>,
}

impl Server {
    fn start(answer: Answer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let (requests, sent) = (Arc::<Mutex<Vec<_>>>::default(), Arc::<AtomicU64>::default());
        let server = Self { port, requests: requests.clone(), sent: sent.clone() };
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, requests, sent) = (answer.clone(), requests.clone(), sent.clone());
                std::thread::spawn(move || serve(stream, &answer, &requests, &sent));
            }
        });
        server
    }

    /// Tries to open a tree on this server.
    fn open(&self) -> Result<(), objects::Error> {
        let endpoint = format!("http://127.0.0.1:{}", self.port);
        let options = [
            ("aws_endpoint", &*endpoint),
            ("aws_allow_http", "true"),
            ("aws_region", "us-east-1"),
            ("aws_access_key_id", "key"),
            ("aws_secret_access_key", "secret"),
            ("aws_session_token", "the-session-token"),
        ];
        let options = options.map(|(key, value)| (key.to_owned(), value.to_owned()));
        let location = Location::parse("s3://bucket/tree", &options)?;
        ObjectFs::open(location, crate::common::options()).map(drop)
    }

    fn requests(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

fn serve(stream: TcpStream, answer: &Answer, requests: &Mutex<Vec<String>>, sent: &AtomicU64) {
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    loop {
        let (mut head, mut line) = (String::new(), String::new());
        while reader.read_line(&mut line).is_ok_and(|len| len > 2) {
            head += &std::mem::take(&mut line);
        }
        if head.is_empty() {
            return;
        }
        let len = head.lines().find_map(|line| line.strip_prefix("content-length: "));
        let len = len.map_or(0, |len| len.parse().unwrap());
        reader.read_exact(&mut vec![0; len]).unwrap();
        let path = head.split(' ').nth(1).unwrap().to_owned();
        requests.lock().unwrap().push(head);
        let mut put = |bytes: &[u8]| {
            sent.fetch_add(bytes.len() as u64, SeqCst);
            stream.write_all(bytes).is_ok()
        };
        let ok =
            "HTTP/1.1 200 OK\r\nETag: \"1\"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\n";
        let chunk = [&b"10000\r\n"[..], &[b'A'; 0x10000], b"\r\n"].concat();
        let go_on = match answer {
            Answer::Absent => put(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"),
            Answer::Redirect(to) => put(format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: {to}{path}\r\nContent-Length: 0\r\n\r\n"
            )
            .as_bytes()),
            Answer::Long => {
                put(format!("{ok}Content-Length: {}\r\n\r\n", 1_u64 << 40).as_bytes());
                while put(&[b'A'; 0x10000]) {}
                false
            }
            Answer::Endless => {
                put(format!("{ok}Content-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n").as_bytes());
                while put(&chunk) {}
                false
            }
            Answer::EndlessError => {
                put(b"HTTP/1.1 403 Forbidden\r\nTransfer-Encoding: chunked\r\n\r\n");
                while put(&chunk) {}
                false
            }
            Answer::EndlessHead => {
                put(ok.as_bytes());
                while put(b"X-More: and more, and more, and more, and more, and more\r\n") {}
                false
            }
        };
        if !go_on {
            return;
        }
    }
}

/// Bytes that sockets may buffer before the server finds that the client has closed the connection.
const IN_SOCKETS: u64 = 16 << 20;

#[test]
fn replies_without_end_are_not_read_to_their_end() {
    for answer in [Answer::Endless, Answer::EndlessError, Answer::Long, Answer::EndlessHead] {
        let server = Server::start(answer.clone());
        let start = Instant::now();
        let err = server.open().expect_err("that is no tree").to_string();
        assert!(start.elapsed() < Duration::from_secs(60), "{answer:?}");
        let (sent, requests) = (server.sent.load(SeqCst), server.requests() as u64);
        assert!(
            sent <= requests * IN_SOCKETS,
            "{answer:?}: {sent} bytes, {requests} requests: {err}"
        );
        assert!(err.len() < 200_000, "{answer:?}: {} bytes", err.len());
    }
}

/// Only the bucket's host may get its credentials.
#[test]
fn redirects_are_not_followed() {
    let other = Server::start(Answer::Absent);
    for host in ["127.0.0.1", "127.0.0.2", "localhost"] {
        let server = Server::start(Answer::Redirect(format!("http://{host}:{}", other.port)));
        server.open().expect_err("it is not there");
        assert!(server.requests() > 0);
        assert!(server.requests.lock().unwrap()[0].contains("the-session-token"));
        assert_eq!(other.requests(), 0, "{host}");
    }
}
