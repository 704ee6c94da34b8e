//! The reference adapter: queues in memory.
