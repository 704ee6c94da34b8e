//! The engine on the memory broker and the memory store, with paused time.

mod cost;
mod crash;
mod guard;
mod ordering;
mod rig;
mod split;
mod worker;
