//! Loom model of the page index's wakers: a task and a thread wait for a page in progress.

use std::future::poll_fn;

use ::loom::{model, thread};

use super::loom::Scene;
use super::{Access, Presence};
use crate::sync::{Arc, Woken, block_on};
use crate::units::{GroupId, Pfn};

#[test]
fn a_task_is_woken_when_a_fill_ends() {
    // Beside a thread that waits for the same page. Symptom of a lost wake-up: a deadlock.
    for is_finished in [true, false] {
        model(move || {
            let scene = Scene::new(Access::ReadOnly);
            let frame = scene.memory.claim(Pfn(0));
            let filling = scene.cache.begin_fill(scene.key, frame, GroupId(0));
            let filling = filling.unwrap();
            let waiter = Arc::clone(&scene);
            let waiter = thread::spawn(move || waiter.cache.lookup(waiter.key));
            let task = Arc::clone(&scene);
            let task = thread::spawn(move || {
                let mut ticket = None;
                let polled =
                    poll_fn(|context| task.cache.poll_lookup(task.key, &mut ticket, context));
                block_on(polled, None).unwrap()
            });
            let mut woken = Woken::default();
            let expected = if is_finished {
                Presence::Resident(scene.cache.finish_fill_and(filling, &mut woken))
            } else {
                let frame = scene.cache.abort_fill_and(filling, &mut woken);
                scene.memory.surrender(frame);
                Presence::Absent
            };
            drop(woken);
            assert_eq!(waiter.join().unwrap(), expected);
            assert_eq!(task.join().unwrap(), expected);
        });
    }
}
