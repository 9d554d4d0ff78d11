//! The client of the API server: how it is found ([`client`]), requests with time limits ([`request`]), views of objects that keep the facts of
//! the snapshot alone ([`view`]), and a list with its watch as one endless stream ([`stream`]).

pub mod access;
pub mod client;
pub mod limit;
mod proxy;
pub mod recent;
pub mod request;
pub mod stream;
pub mod view;
