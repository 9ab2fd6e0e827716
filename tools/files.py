"""Lets the Python tools write files safely into folders where others may write, such as a run directory."""
import os
import secrets


def replace(path, data):
    """Atomically replaces the content of `path` with the bytes `data`. A link or pipe of that name is replaced, not opened."""
    folder, name = os.path.split(path)
    directory = os.open(folder or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        new = f".{name}.{secrets.token_hex(8)}"
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666, dir_fd=directory)
        try:
            with open(descriptor, "wb") as file:
                file.write(data)
            os.rename(new, name, src_dir_fd=directory, dst_dir_fd=directory)
        except BaseException:
            os.unlink(new, dir_fd=directory)
            raise
    finally:
        os.close(directory)
