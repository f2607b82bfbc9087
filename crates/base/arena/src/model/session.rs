//! The gate: no thread is inside while the world is stopped, whichever process dies.

#![allow(
    clippy::arc_with_non_send_sync,
    reason = "whether cells are shared in order is what loom checks"
)]

use super::*;
use crate::attach::Located;
use crate::model::{Memory, ProcessId, die, explore, set_impatient, set_relying};
use loom::cell::UnsafeCell;
use loom::thread;

/// A shared arena as processes 1 to 3 see it, each with the slot of that number. Its cell is used
/// by threads inside, and changed by a thread that has stopped the world. Loom reports unordered
/// uses.
pub(crate) struct World {
    memory: Memory,
    tables: Tables,
    used: UnsafeCell<()>,
}

impl World {
    pub(crate) fn new(layout: &Layout) -> Arc<Self> {
        let tables = layout.session.expect("the layout is a shared one");
        let memory = Memory::planned(&layout.plan);
        let threads = memory.table(tables.threads)[1..].iter().map(|t| &t.who);
        let processes = memory.table(tables.processes).iter().map(|p| &p.who);
        for (n, (thread, process)) in (1..).zip(threads.zip(processes)) {
            thread.store(ProcessId::numbered(n).0, Relaxed);
            process.store(ProcessId::numbered(n).0, Relaxed);
        }
        memory.table(tables.header)[0].threads_used.store(THREADS as u32, Relaxed);
        Arc::new(Self { memory, tables, used: UnsafeCell::new(()) })
    }

    fn empty() -> Arc<Self> {
        Self::new(&Layout::shared())
    }

    /// Makes a session of this process.
    fn attach(&self) -> Arc<Session> {
        let file = rustix::fs::open(c"/dev/null", rustix::fs::OFlags::RDONLY, 0.into()).unwrap();
        Session::new(self.memory.clone(), self.tables, file).unwrap()
    }

    /// Runs `body` as a thread of process `n`, which has slots already and leaves them as they are.
    pub(crate) fn process<T>(&self, n: u64, body: impl FnOnce(&Arena) -> T) -> T {
        let session = self.attach();
        ProcessId::enter(n);
        sync::last().set((session.key(), n as u32));
        body(&arena(session))
    }

    /// Does an operation.
    fn operate(&self, arena: &Arena) -> Result<(), Refused> {
        let _inside = arena.enter()?;
        self.used.with(|_| ());
        Ok(())
    }

    /// Does an operation. If the state must be repaired first, repairs it, unless another process
    /// does. Returns the number of repairs.
    fn operate_or_repair(&self, arena: &Arena) -> u32 {
        let mut repairs = 0;
        while let Err(why) = self.operate(arena) {
            assert_eq!(why, Refused::Stopped);
            if let Some(stopped) = arena.stop_the_world().unwrap()
                && stopped.is_unfinished()
            {
                self.repair(arena, &stopped);
                repairs += 1;
            }
        }
        repairs
    }

    fn repair(&self, arena: &Arena, stopped: &Stopped<'_>) {
        self.used.with_mut(|_| ());
        arena.free_dead(stopped, &arena.census(stopped));
    }
}

fn arena(session: Arc<Session>) -> Arena {
    Arena::shared(session, Located::nowhere(), 0)
}

/// session-E4, and no thread sleeps for ever.
#[test]
fn nobody_is_inside_a_stopped_world() {
    explore(|| {
        let world = World::empty();
        let operate = |n| {
            let world = world.clone();
            move || world.process(n, |arena| world.operate(arena).unwrap())
        };
        let others = [thread::spawn(operate(1)), thread::spawn(operate(2))];
        world.process(3, |arena| {
            let stopped = arena.stop_the_world().unwrap().expect("nobody else does");
            assert!(!stopped.is_unfinished());
            world.used.with_mut(|_| ());
        });
        others.into_iter().for_each(|t| t.join().unwrap());
    });
}

/// session-E4: process 2 attaches while process 3, which cannot make others fence, stops the world.
/// Process 2 relies on that and does not fence, so process 3 either sees it and backs off, or keeps
/// it outside.
#[test]
fn who_cannot_make_others_fence_does_not_stop_those_who_rely_on_it() {
    explore(|| {
        let world = World::empty();
        world.memory.table(world.tables.processes)[1].who.store(0, Relaxed);
        let relying = {
            let world = world.clone();
            thread::spawn(move || {
                set_relying();
                ProcessId::enter(2);
                let session = world.attach();
                session.process().unwrap();
                sync::last().set((session.key(), 2));
                assert!(!session.fences.load(Relaxed));
                world.operate(&arena(session)).unwrap();
            })
        };
        world.process(3, |arena| {
            if let Some(_stopped) = arena.stop_the_world().unwrap() {
                world.used.with_mut(|_| ());
            }
            assert!(arena.session().unwrap().header().gate.load(Relaxed) == 0);
        });
        relying.join().unwrap();
    });
}

/// The second to stop the world gets `None`, or does it after the first has finished.
#[test]
fn one_stops_the_world_at_a_time() {
    explore(|| {
        let world = World::empty();
        let stop = |n| {
            let world = world.clone();
            move || {
                world.process(n, |arena| match arena.stop_the_world().unwrap() {
                    Some(_stopped) => world.used.with_mut(|_| ()),
                    None => arena.wait_outside().unwrap(),
                });
                world.process(n, |arena| world.operate(arena).unwrap());
            }
        };
        let other = thread::spawn(stop(1));
        stop(2)();
        other.join().unwrap();
    });
}

/// Runs a thread of process 1, which dies with the gate closed.
fn close_and_die(world: &World) {
    world.process(1, |arena| {
        std::mem::forget(arena.stop_the_world().unwrap().expect("nobody else does"));
        world.used.with_mut(|_| ());
        die();
    });
}

/// Runs an impatient thread of process `n`. Returns the number of its repairs.
fn operate_or_repair(world: &World, n: u64) -> u32 {
    set_impatient();
    world.process(n, |arena| world.operate_or_repair(arena))
}

/// The closer dies while another process does an operation, which either ends before the closing,
/// or finds the closer dead.
#[test]
fn the_gate_of_a_dying_closer_is_taken_over() {
    explore(|| {
        let world = World::empty();
        let closer = world.clone();
        let dead = thread::spawn(move || close_and_die(&closer));
        let repairs = operate_or_repair(&world, 2);
        dead.join().unwrap();
        assert_eq!(repairs + operate_or_repair(&world, 3), 1);
    });
}

/// Of two processes that find the closer dead, one repairs, and the other one waits.
#[test]
fn the_gate_of_a_dead_closer_is_taken_over_once() {
    explore(|| {
        let world = World::empty();
        close_and_die(&world);
        let second = world.clone();
        let other = thread::spawn(move || operate_or_repair(&second, 2));
        let repairs = operate_or_repair(&world, 3);
        assert_eq!(repairs + other.join().unwrap(), 1);
    });
}

/// Process 1 dies inside (session-E2). Process 2 sees that and repairs, while process 3 does an
/// operation.
#[test]
fn the_world_stops_without_the_dead() {
    explore(|| {
        let world = World::empty();
        let dying = world.clone();
        let dead = thread::spawn(move || {
            dying.process(1, |arena| {
                std::mem::forget(arena.enter().unwrap());
                dying.used.with(|_| ());
                die();
            });
        });
        let living = world.clone();
        let other = thread::spawn(move || {
            living.process(3, |arena| living.operate(arena).unwrap());
        });
        world.process(2, |arena| {
            while !arena.has_died_inside() {
                thread::yield_now();
            }
            let stopped = arena.stop_the_world().unwrap().expect("nobody else does");
            assert_eq!(arena.census(&stopped).dead().collect::<Vec<_>>(), [0]);
            world.repair(arena, &stopped);
            drop(stopped);
            assert!(!arena.has_died_inside());
        });
        other.join().unwrap();
        dead.join().unwrap();
    });
}

/// Two threads of process 1 die inside (session-E2). Process 3 sees that although the slot of one
/// of them is cleared meanwhile.
#[test]
fn a_slot_that_changes_hides_no_other_of_its_process() {
    explore(|| {
        let world = World::empty();
        let slots = world.memory.table(world.tables.threads);
        slots[2].who.store(ProcessId::numbered(1).0, Relaxed);
        slots[2].inside.store(1, Relaxed);
        world.process(1, |arena| {
            std::mem::forget(arena.enter().unwrap());
            die();
        });
        let clearing = world.clone();
        let other = thread::spawn(move || {
            let slots = clearing.memory.table(clearing.tables.threads);
            slots[1].inside.store(0, Relaxed);
        });
        world.process(3, |arena| assert!(arena.has_died_inside()));
        other.join().unwrap();
    });
}

/// Two threads of one process; one keeps the other outside. A pause does not order accesses with a
/// thread that enters after it, so the model has a fence of its own there.
#[test]
fn who_pauses_is_alone() {
    explore(|| {
        let world = World::empty();
        let slots = world.memory.table(world.tables.threads);
        slots[2].who.store(ProcessId::numbered(1).0, Relaxed);
        let arena = Arc::new(arena(world.attach()));
        let become_thread = |arena: &Arena, slot| {
            ProcessId::enter(1);
            sync::last().set((arena.session().unwrap().key(), slot));
        };
        let other = {
            let (world, arena) = (world.clone(), arena.clone());
            thread::spawn(move || {
                become_thread(&arena, 2);
                let _inside = arena.enter().unwrap();
                fence(Acquire);
                world.used.with(|_| ());
            })
        };
        become_thread(&arena, 1);
        {
            let _paused = arena.pause().expect("the arena is a shared one");
            world.used.with_mut(|_| ());
        }
        other.join().unwrap();
    });
}

/// Two processes come at once, to a table in which all but two slots are taken.
#[test]
fn slots_have_one_owner() {
    explore(|| {
        let world = World::empty();
        for n in 2..=3 {
            world.memory.table(world.tables.threads)[n].who.store(0, Relaxed);
            world.memory.table(world.tables.processes)[n - 1].who.store(0, Relaxed);
        }
        let join = |n| {
            let world = world.clone();
            move || {
                ProcessId::enter(n);
                let session = world.attach();
                let slots = (session.process().unwrap(), session.slot().unwrap());
                // Leave without giving the slots back.
                session.detached.store(true, Relaxed);
                slots
            }
        };
        let other = thread::spawn(join(2));
        let (process, slot) = join(3)();
        let (other_process, other_slot) = other.join().unwrap();
        assert_eq!([1, 2], [process.min(other_process), process.max(other_process)]);
        assert_eq!([2, 3], [slot.min(other_slot), slot.max(other_slot)]);
    });
}

/// Process 1 has died outside (session-E1), and all slots are taken. Process 2 clears what it has
/// left, while the new process 4 takes over its slot with these leftovers: not both at once.
#[test]
fn a_slot_is_cleared_by_one_at_a_time() {
    explore(|| {
        let world = World::empty();
        world.process(1, |_| die());
        let newcomer = world.clone();
        let other = thread::spawn(move || {
            ProcessId::enter(4);
            let session = newcomer.attach();
            if session.process() == Ok(0) {
                newcomer.used.with_mut(|_| ());
            }
            // The slot stays taken: the test no longer needs it.
            session.detached.store(true, Relaxed);
        });
        world.process(2, |arena| {
            for process in arena.take_dead_processes(Look::Thorough) {
                world.used.with_mut(|_| ());
                arena.free_process(process);
            }
        });
        other.join().unwrap();
    });
}
