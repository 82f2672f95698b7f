//! Opens files that users name, without blocking on special files, and reads text up to a size
//! limit.

use base::trust::describe_special_file;
use engine::text::find_byte_order_mark;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

/// Paths, or prefixes of paths, of open file descriptors, such as pipes of a shell. Opening an
/// anonymous pipe by such a path does not block.
const DESCRIPTOR_PATHS: [&str; 4] =
    ["/dev/stdin", "/dev/fd/", "/proc/self/fd/", "/proc/thread-self/fd/"];

/// The permission of all other users to read a file.
const OTHERS_READ: u32 = 0o004;

/// The permission of all other users to open the files in a directory.
const OTHERS_SEARCH: u32 = 0o001;

/// Opens a regular file for reading, for content that may be read again later: other kinds of files
/// can be read only once.
///
/// # Errors
///
/// Returns an error if the file cannot be opened, or is not a regular file.
pub fn open_regular(file: &Path) -> io::Result<File> {
    match describe_special_file(file) {
        None => File::open(file),
        Some(kind) => Err(io::Error::other(format!("it is not a regular file but {kind}"))),
    }
}

/// Opens a regular file, a character device such as a terminal, or a pipe that is already open such
/// as `/dev/stdin`. Rejects a named pipe, because opening it blocks until another process opens it
/// for writing.
///
/// # Errors
///
/// Returns an error if the file cannot be opened, or is of another kind.
pub fn open(file: &Path) -> io::Result<File> {
    let kind = std::fs::metadata(file)?.file_type();
    let name = file.as_os_str().to_string_lossy();
    let is_open_pipe =
        kind.is_fifo() && DESCRIPTOR_PATHS.iter().any(|prefix| name.starts_with(prefix));
    if is_open_pipe || kind.is_char_device() { File::open(file) } else { open_regular(file) }
}

/// Returns whether the permissions of a file and of all its parent directories allow every user of
/// this machine to read it. Returns `false` if they cannot be examined.
pub(crate) fn is_world_readable(file: &Path) -> bool {
    let has_permission = |path: &Path, bit: u32| {
        std::fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & bit != 0)
    };
    let Ok(file) = file.canonicalize() else { return false };
    has_permission(&file, OTHERS_READ)
        && file.ancestors().skip(1).all(|folder| has_permission(folder, OTHERS_SEARCH))
}

/// Reads an open file as text.
///
/// # Errors
///
/// Returns an error if the file has more than `bytes_max` bytes, is not UTF-8, or cannot be read.
pub fn read_text(file: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("it has more than {bytes_max} bytes")));
    }
    let marked_encoding = find_byte_order_mark(&bytes);
    String::from_utf8(bytes).map_err(|error| {
        let offset = error.utf8_error().valid_up_to();
        io::Error::other(match marked_encoding {
            Some(encoding) => {
                format!("it begins with a byte-order mark of {encoding}; save it as text in UTF-8")
            }
            None => format!("the byte at {offset} is not valid UTF-8; save it as text in UTF-8"),
        })
    })
}

/// Opens and reads a file that is read only once, such as a message. So it may also be a pipe.
///
/// # Errors
///
/// Returns the errors of [`open`] and [`read_text`].
pub fn read_file(file: &Path, bytes_max: u64) -> io::Result<String> {
    read_text(open(file)?, bytes_max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn files_that_would_block_are_not_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (pipe, socket) = (folder.path().join("pipe"), folder.path().join("socket"));
        let status = std::process::Command::new("mkfifo").arg(&pipe).status().expect("mkfifo");
        assert!(status.success());
        let _listener = UnixListener::bind(&socket).expect("a socket");
        for (file, kind) in [
            (pipe.as_path(), "a named pipe"),
            (&socket, "a socket"),
            (folder.path(), "a directory"),
        ] {
            for result in [open(file), open_regular(file)] {
                let error = result.expect_err("the file is refused").to_string();
                assert!(error.contains(kind), "{}: {error}", file.display());
            }
        }
        assert!(open(&folder.path().join("none")).is_err());
        assert!(open(Path::new("/dev/zero")).is_ok());
        let error = open_regular(Path::new("/dev/zero")).expect_err("refused").to_string();
        assert!(error.contains("a device"), "{error}");
    }

    #[test]
    fn an_inherited_pipe_is_read() {
        use std::os::fd::AsRawFd;
        let (reader, mut writer) = io::pipe().expect("a pipe");
        io::Write::write_all(&mut writer, b"{}").expect("the pipe is written");
        drop(writer);
        let name = format!("/dev/fd/{}", reader.as_raw_fd());
        assert_eq!(read_file(Path::new(&name), 10).expect("the pipe is read"), "{}");
    }

    #[test]
    fn files_that_are_not_text_are_rejected_with_the_reason() {
        let error = |bytes: &[u8]| read_text(bytes, 8).expect_err("refused").to_string();
        assert!(error(b"\xff\xfea\0").contains("byte-order mark of UTF-16 LE"));
        assert!(error(b"ab\xff").contains("the byte at 2"));
        assert!(error(b"123456789").contains("more than 8 bytes"));
        assert_eq!(read_text(&b"12345678"[..], 8).expect("text"), "12345678");
    }
}
