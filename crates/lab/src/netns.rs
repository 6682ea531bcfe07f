//! Network namespaces, their addresses, routes and settings.
