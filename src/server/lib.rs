//! The admission webhook and the controller, as they run: the listeners and what they answer ([`http`]), the API server's watches and writes
//! ([`cluster`]), and what builds and supervises both ([`app`]). [`http`] and [`cluster`] never use each other.

pub mod app;
pub mod cluster;
pub mod http;
