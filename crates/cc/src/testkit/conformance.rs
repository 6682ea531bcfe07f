//! The conformance kit (operations): see below.
