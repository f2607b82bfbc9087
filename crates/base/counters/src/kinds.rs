//! What calls are counted by: their classes, and why some go to the kernel.

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident $name:literal,)*) => {
        /// A class of calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class { $($(#[$doc])* $class,)* }

        impl Class {
            /// How many there are.
            pub const COUNT: usize = [$(Class::$class),*].len();
            /// Their names, in order.
            pub const NAMES: [&'static str; Self::COUNT] = [$($name),*];
        }
    };
}

classes! {
    /// Opening.
    Open "open",
    /// Closing.
    Close "close",
    /// Duplicates and flags of descriptors.
    Descriptor "descriptor",
    /// Reading.
    Read "read",
    /// Writing.
    Write "write",
    /// Moving the offset.
    Seek "seek",
    /// Changing sizes and allocation.
    Size "size",
    /// Waiting for durability.
    Sync "sync",
    /// Asking for attributes and permissions.
    Stat "stat",
    /// Changing attributes.
    Attributes "attributes",
    /// Extended attributes.
    Xattr "xattr",
    /// Creating, removing, renaming, reading links.
    Names "names",
    /// Listing directories.
    List "list",
    /// Mapping.
    Map "map",
    /// Locks.
    Lock "lock",
    /// Copying between descriptors.
    Copy "copy",
    /// Everything else.
    Other "other",
}

impl Class {
    /// Whether a thread can be cancelled in libc's functions of this class, those that wait for locks
    /// apart.
    pub const fn is_cancellation_point(self) -> bool {
        use Class::{Close, Copy, Open, Read, Sync, Write};
        matches!(self, Close | Copy | Open | Read | Sync | Write)
    }

    /// Whether what a call returns is how many bytes of files it has moved.
    pub const fn moves_bytes(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Copy)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal, $text:literal, $remedy:literal;)*) => {
        /// Why calls on a pool went through the mount.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $reason,)* }

        impl Reason {
            /// How many there are.
            pub const COUNT: usize = [$(Reason::$reason),*].len();
            /// All of them, in order.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$reason),*];

            /// One word.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reason => $name,)* }
            }

            /// A reason, in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$reason => $text,)* }
            }

            /// What helps; empty where nothing does.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$reason => $remedy,)* }
            }
        }
    };
}

reasons! {
    /// On a descriptor that the program found open: to attach a pool for them would take longer.
    FirstCalls "first-calls", "first calls on inherited descriptors", "";
    /// The server has the pool for itself.
    Exclusive "exclusive", "the mount has the pool for itself", "unmount, and mount with `-o direct`";
    /// The pool is not this user's to open.
    Permission "permission", "this user may not open the pool", "`keepstone doctor DIR` tells what to change";
    /// Another user has made the mount, or its server does not have the pool that it names.
    Foreign "foreign", "another user's mount, or a server that does not have the pool", "mount the pool as root, or as this user";
    /// Processes cannot be told apart, or paths lead elsewhere.
    Namespace "namespace", "another PID, time, user or mount namespace, or root directory",
        "run the program where the mount's server runs";
    /// The pool could not be opened for another reason.
    Unusable "unusable", "the pool could not be opened here", "`KEEPSTONE_DEBUG=1` tells why";
    /// The program gets the kernel's descriptors from the start.
    KernelDescriptors "kernel-descriptors", "the program got the mount's descriptors (--fds real, or a ring of io_uring that it fills itself)",
        "`--fds fast`, if it does not hand them to the kernel itself";
    /// libc goes on with a descriptor by calls that nobody sees.
    Libc "libc", "used by libc itself", "";
    /// Nobody else can do it.
    KernelOnly "kernel-only", "calls that only the kernel can make", "";
    /// On files below `--direct`, where a copy would not do.
    Direct "direct", "calls on files below --direct, or of a cache, that the kernel had to make", "";
    /// A program that was executed.
    Executed "executed", "executed", "";
}

impl Reason {
    /// By its number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
