//! JSON lines from a file or stdin as a source of messages.
