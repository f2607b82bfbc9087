//! A device of the kernel, with a thread for each of its queues.
//!
//! - **ublk-U1** The device outlives its server. If the server is killed, requests wait, including
//!   those in progress, and the kernel sends them to the next server of the same pool. Serving a
//!   request twice is harmless, because the first time was never answered.
//! - **ublk-U2** Only a server that has the pool's lock takes over a device, so two servers never
//!   serve one device.
//! - **ublk-U3** With write buffers, a killed server loses writes that it has confirmed, so users
//!   of the device must see errors. The device then ends with its server.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Instant;

use anyhow::{Context as _, Result, bail};
use libublk::ctrl::{UblkCtrl, UblkCtrlBuilder};
use libublk::helpers::IoBuf;
use libublk::io::{UblkDev, UblkQueue};
use libublk::{BufDesc, BufDescList, UblkError, UblkFlags, UblkIORes, sys};
use pmbd::{BlockDevice, RequestTimes};
use serde_json::{Value, json};

use super::requests;
use crate::background;
use crate::bdev::devices::Opened;
use crate::bdev::kernel::Attached;

/// Longest read or write, in bytes. Each request of a queue has a buffer of that length.
const REQUEST_BYTES: u32 = 512 << 10;

/// Where the kernel lists devices, each as `ublkcN`.
const DEVICES: &str = "/sys/class/ublk-char";

/// Flags of devices that wait for another server, and send it the requests that the last one had
/// not answered (ublk-U1).
const OUTLIVES_SERVER: u64 = (sys::UBLK_F_USER_RECOVERY | sys::UBLK_F_USER_RECOVERY_REISSUE) as u64;

/// The key under which `libublk` stores the pool's identity in its file about the device.
const POOL: &str = "keepstone_pool";

/// Returns why this machine cannot use ublk.
pub fn missing() -> Option<&'static str> {
    let there = Path::new("/dev/ublk-control").exists();
    (!there)
        .then_some("the kernel has no ublk (`modprobe ublk_drv`? Linux 6.0, CONFIG_BLK_DEV_UBLK)")
}

/// A device whose server was killed.
pub struct LeftBehind(sys::ublksrv_ctrl_dev_info);

/// Finds the device on `pool` whose server was killed, if any. The caller holds the pool's lock
/// (ublk-U2).
pub fn left_behind(pool: &Path) -> Result<Option<LeftBehind>> {
    private_files()?;
    let Ok(devices) = fs::read_dir(DEVICES) else { return Ok(None) };
    let pool = identity(pool)?;
    for device in devices {
        let name = device?.file_name();
        let number = name.to_str().and_then(|name| name.strip_prefix("ublkc")?.parse().ok());
        let Some((control, of)) = number.and_then(orphan) else { continue };
        if of != pool {
            continue;
        }
        let info = control.dev_info();
        if u32::from(info.state) != sys::UBLK_S_DEV_DEAD && info.flags & OUTLIVES_SERVER != 0 {
            return Ok(Some(LeftBehind(info)));
        }
        // A device that cannot be taken over.
        control.del_dev().map_err(as_io)?;
    }
    Ok(None)
}

/// Deletes the device `/dev/ublkbN` of a killed server; waiting requests fail. Returns false if it
/// is not such a device.
pub fn let_go(device: &str) -> Result<bool> {
    let number = device.strip_prefix("/dev/ublkb").and_then(|number| number.parse().ok());
    let Some((control, _)) = number.and_then(orphan) else { return Ok(false) };
    control.del_dev().map_err(as_io).with_context(|| format!("{device}: cannot be deleted"))?;
    Ok(true)
}

/// Returns a device of this program without a server, and the identity of its pool.
fn orphan(number: u32) -> Option<(UblkCtrl, Value)> {
    // Fails for a device that has been deleted meanwhile, or belongs to another user.
    let control = UblkCtrl::new_simple(number.try_into().ok()?).ok()?;
    let pool = control.get_target_data_from_json()?.get(POOL)?.clone();
    let info = control.dev_info();
    let live = u32::from(info.state) == sys::UBLK_S_DEV_LIVE;
    // For a moment the kernel reports a device as live although its server is gone.
    let served = live && Path::new(&format!("/proc/{}", info.ublksrv_pid)).exists();
    (!served).then_some((control, pool))
}

/// Creates the directory of `libublk`'s files about devices so that no other user may write there.
/// `libublk` would create it for all users.
fn private_files() -> Result<()> {
    let dir = UblkCtrl::run_dir();
    background::make_private(Path::new(&dir))
}

/// Returns the identity of a pool. Another pool at the same path has another identity.
fn identity(pool: &Path) -> Result<Value> {
    let file = pool.metadata().with_context(|| pool.display().to_string())?;
    Ok(json!({ "device": file.dev(), "inode": file.ino() }))
}

/// Gives the kernel `opened` as a device with logical blocks of `block` bytes. If there is a device
/// `left` behind, takes that over unchanged.
pub fn attach(
    opened: &Opened,
    block: u32,
    queues: usize,
    depth: u16,
    left: Option<LeftBehind>,
) -> Result<Attached> {
    let taken_over = left.is_some();
    let outlives = opened.report.buffers.is_none();
    if taken_over && !outlives {
        bail!(
            "a device of a killed server is waiting, and with --buffers another kill would silently lose \
             confirmed writes: leave out --buffers, or `keepstone bdev detach` the device first"
        );
    }
    let times = Arc::<RequestTimes>::default();
    let setup = Setup {
        device: opened.device.clone(),
        pool: identity(Path::new(&opened.report.path))?,
        block,
        queues: queues.try_into()?,
        depth,
        outlives,
        left,
        times: times.clone(),
    };
    let ((starts, started), (ends, end)) = (channel(), channel());
    std::thread::Builder::new().name("ublk".into()).spawn(move || {
        let _ = ends.send(serve(setup, starts).map_err(as_io));
    })?;
    let Ok((number, path)) = started.recv() else {
        let ended = end.recv().context("the thread that serves the kernel died")?;
        ended
            .context("/dev/ublk-control: makes no device; only root may, with io_uring allowed")?;
        bail!("the device was deleted before it could be used");
    };
    let release = move || {
        let control = UblkCtrl::new_simple(number).map_err(as_io)?;
        control
            .kill_dev()
            .map_err(as_io)
            .with_context(|| format!("ublk {number}: cannot be released"))?;
        Ok(())
    };
    let release = Box::new(release);
    Ok(Attached { kind: "ublk", path, through: None, taken_over, release, end, times })
}

/// The parameters of a device.
struct Setup {
    device: Arc<dyn BlockDevice>,
    pool: Value,
    block: u32,
    queues: u16,
    depth: u16,
    /// Whether it outlives a killed server (ublk-U3).
    outlives: bool,
    left: Option<LeftBehind>,
    /// The times of requests.
    times: Arc<RequestTimes>,
}

/// Creates the device, sends its number and name when it can be used, and serves until it is
/// deleted.
fn serve(setup: Setup, starts: Sender<(i32, String)>) -> Result<(), UblkError> {
    let control = setup.control()?;
    let (device, times) = (setup.device.clone(), setup.times.clone());
    control.run_target(
        move |dev| {
            setup.describe(dev);
            Ok(())
        },
        move |queue, dev| serve_queue(queue, dev, &*device, &times),
        move |control| {
            let number = control.dev_info().dev_id as i32;
            let _ = starts.send((number, control.get_bdev_path()));
        },
    )?;
    control.del_dev()?;
    Ok(())
}

impl Setup {
    /// Creates a device, or takes over the one left behind.
    fn control(&self) -> Result<UblkCtrl, UblkError> {
        let builder = UblkCtrlBuilder::default().name("keepstone");
        let Some(LeftBehind(info)) = &self.left else {
            return builder
                .nr_queues(self.queues)
                .depth(self.depth)
                .io_buf_bytes(REQUEST_BYTES)
                .ctrl_flags(if self.outlives { OUTLIVES_SERVER } else { 0 })
                .dev_flags(UblkFlags::UBLK_DEV_F_ADD_DEV)
                .build();
        };
        let control = builder
            .id(info.dev_id as i32)
            .nr_queues(info.nr_hw_queues)
            .depth(info.queue_depth)
            .io_buf_bytes(info.max_io_buf_bytes)
            .ctrl_flags(OUTLIVES_SERVER)
            .dev_flags(UblkFlags::UBLK_DEV_F_RECOVER_DEV)
            .build()?;
        // Waits until the kernel knows that the old server is gone.
        control.start_user_recover()?;
        Ok(control)
    }

    fn describe(&self, dev: &mut UblkDev) {
        dev.set_target_json(json!({ POOL: self.pool }));
        dev.set_default_params(self.device.size());
        let zeroing_sectors = self.device.block_sizes().maximum >> 9;
        let params = &mut dev.tgt.params;
        params.types |= sys::UBLK_PARAM_TYPE_DISCARD;
        params.basic.attrs = sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA;
        if self.device.is_read_only() {
            params.basic.attrs |= sys::UBLK_ATTR_READ_ONLY;
        }
        params.basic.logical_bs_shift = self.block.trailing_zeros() as u8;
        params.discard = sys::ublk_param_discard {
            discard_granularity: self.block,
            max_discard_sectors: zeroing_sectors,
            max_write_zeroes_sectors: zeroing_sectors,
            max_discard_segments: 1,
            ..Default::default()
        };
    }
}

/// Serves the requests of a queue in the order in which they come: handing them to other threads
/// would take longer.
fn serve_queue(number: u16, dev: &UblkDev, device: &dyn BlockDevice, times: &RequestTimes) {
    let mut content: Vec<IoBuf<u8>> = dev.alloc_queue_io_bufs();
    let queue = UblkQueue::new(number, dev)
        .and_then(|queue| queue.submit_fetch_commands_unified(BufDescList::Slices(Some(&content))));
    let queue = match queue {
        Ok(queue) => queue,
        Err(err) => {
            tracing::error!("queue {number}: {}", as_io(err));
            // Lets the start fail, instead of waiting for this queue.
            return dev.notify_buffer_registration_complete(true);
        }
    };
    queue.wait_and_handle_io(|queue, tag, _| {
        let start = Instant::now();
        let content = &mut content[usize::from(tag)];
        let request = queue.get_iod(tag);
        let kind = requests::timed(request);
        let done = requests::answer(device, request, content.as_mut_slice());
        if let Some(kind) = kind.filter(|_| done >= 0) {
            times.record(kind, start);
        }
        let content = BufDesc::Slice(content.as_slice());
        let told = queue.complete_io_cmd_unified(tag, content, Ok(UblkIORes::Result(done)));
        if let Err(err) = told {
            tracing::error!("queue {number}: a request has no answer: {}", as_io(err));
        }
    });
}

/// Converts an error to one that shows the error number, which the library's text leaves out.
fn as_io(err: UblkError) -> io::Error {
    match err {
        UblkError::UringIOError(number) | UblkError::OtherError(number) => {
            io::Error::from_raw_os_error(-number)
        }
        UblkError::IOError(err) => err,
        other => io::Error::other(other),
    }
}
