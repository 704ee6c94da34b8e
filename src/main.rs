//! The `ackord` program.

fn main() -> std::process::ExitCode {
    ackord::cli::main()
}
