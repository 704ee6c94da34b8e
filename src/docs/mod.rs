//! The documentation, as it stands beside the code.

#[doc = include_str!("life_of_a_message.md")]
pub mod life_of_a_message {}
#[doc = include_str!("message_shapes.md")]
pub mod message_shapes {}
#[doc = include_str!("guarantees.md")]
pub mod guarantees {}
#[doc = include_str!("adding_a_broker.md")]
pub mod adding_a_broker {}
#[doc = include_str!("adding_a_store.md")]
pub mod adding_a_store {}
#[doc = include_str!("terms.md")]
pub mod terms {}
#[cfg(doctest)]
#[doc = include_str!("../../README.md")]
mod readme {}
