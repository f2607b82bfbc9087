//! The categories of counts: classes of calls, and reasons why calls go to the kernel.

macro_rules! classes {
    ($($(#[$doc:meta])* $class:ident $name:literal,)*) => {
        /// A class of calls.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class { $($(#[$doc])* $class,)* }

        impl Class {
            /// The number of classes.
            pub const COUNT: usize = [$(Class::$class),*].len();
            /// The names of the classes, in order.
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
    /// All other calls.
    Other "other",
}

impl Class {
    /// Whether a thread can be cancelled in libc's functions of this class, except in those that
    /// wait for locks.
    pub const fn is_cancellation_point(self) -> bool {
        use Class::{Close, Copy, Open, Read, Sync, Write};
        matches!(self, Close | Copy | Open | Read | Sync | Write)
    }

    /// Whether the result of a call is the number of bytes that it has moved.
    pub const fn moves_bytes(self) -> bool {
        matches!(self, Self::Read | Self::Write | Self::Copy)
    }
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $reason:ident $name:literal, $text:literal, $remedy:literal;)*) => {
        /// A reason why calls on a pool went through the mount.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Reason { $($(#[$doc])* $reason,)* }

        impl Reason {
            /// The number of reasons.
            pub const COUNT: usize = [$(Reason::$reason),*].len();
            /// All reasons, in order.
            pub const ALL: [Self; Self::COUNT] = [$(Self::$reason),*];

            /// Returns the reason as one word.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$reason => $name,)* }
            }

            /// Returns the reason in words.
            pub const fn text(self) -> &'static str {
                match self { $(Self::$reason => $text,)* }
            }

            /// Returns a remedy, or an empty text.
            pub const fn remedy(self) -> &'static str {
                match self { $(Self::$reason => $remedy,)* }
            }
        }
    };
}

reasons! {
    /// First calls on a descriptor that the program inherited: to attach the pool for them would
    /// take longer.
    FirstCalls "first-calls", "first calls on inherited descriptors", "";
    /// The server uses the pool exclusively.
    Exclusive "exclusive", "the mount has the pool for itself", "unmount, and mount with `-o direct`";
    /// This user may not open the pool.
    Permission "permission", "this user may not open the pool", "`keepstone doctor DIR` tells what to change";
    /// The mount was made by another user, or its server does not have the pool that it names.
    Foreign "foreign", "another user's mount, or a server that does not have the pool", "mount the pool as root, or as this user";
    /// Process numbers or paths have a different meaning in this process than in the server.
    Namespace "namespace", "another PID, time, user or mount namespace, or root directory",
        "run the program where the mount's server runs";
    /// The pool could not be opened for another reason.
    Unusable "unusable", "the pool could not be opened here", "`KEEPSTONE_DEBUG=1` tells why";
    /// The program gets the kernel's descriptors from the start.
    KernelDescriptors "kernel-descriptors", "the program got the mount's descriptors (--fds real, or a ring of io_uring that it fills itself)",
        "`--fds fast`, if it does not hand them to the kernel itself";
    /// libc uses the descriptor itself, by calls that cannot be interposed.
    Libc "libc", "used by libc itself", "";
    /// Only the kernel can do it.
    KernelOnly "kernel-only", "calls that only the kernel can make", "";
    /// Calls on files below `--direct` that a copy in user space cannot replace.
    Direct "direct", "calls on files below --direct that the kernel had to make", "";
    /// The program was executed.
    Executed "executed", "executed", "";
}

impl Reason {
    /// Returns the reason with a number.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}
