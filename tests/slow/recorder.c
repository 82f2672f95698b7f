/* Preloaded into a process: records what it does to the files in $RECORDER_FOLDER, in order, in the file $RECORDER_LOG.
 * A record: kind (1 byte), length of the name (1), name, offset (8, little endian), length of the data (8), data. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { WRITE = 'w', TRUNCATE = 't', SYNC = 's', UNLINK = 'u', FDS_MAX = 1024 };

static char names[FDS_MAX][200];
static uint64_t positions[FDS_MAX];
static int log_fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* The name within the folder; NULL: it is none of ours. */
static const char *of_folder(const char *path) {
    const char *folder = getenv("RECORDER_FOLDER");
    size_t length = folder ? strlen(folder) : 0;
    if (!path || !length || strncmp(path, folder, length) != 0 || path[length] != '/') return NULL;
    return path + length + 1;
}

static void put(const void *data, size_t length) {
    const char *from = data;
    while (length > 0) {
        long done = syscall(SYS_write, log_fd, from, length);
        if (done <= 0) abort();
        from += done;
        length -= (size_t)done;
    }
}

static void record(char kind, const char *name, uint64_t offset, const void *data, uint64_t length) {
    uint8_t name_length = (uint8_t)strlen(name);
    if (log_fd < 0) log_fd = (int)syscall(SYS_openat, AT_FDCWD, getenv("RECORDER_LOG"), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    put(&kind, 1);
    put(&name_length, 1);
    put(name, name_length);
    put(&offset, 8);
    put(&length, 8);
    if (kind == WRITE) put(data, length);
}

static const char *known(int fd) {
    return fd >= 0 && fd < FDS_MAX && names[fd][0] ? names[fd] : NULL;
}

static int opened(int folder, const char *path, int flags, mode_t mode) {
    int fd = (int)syscall(SYS_openat, folder, path, flags, mode);
    const char *name = of_folder(path);
    if (fd >= 0 && fd < FDS_MAX) {
        names[fd][0] = 0;
        positions[fd] = 0;
        if (name) strncpy(names[fd], name, sizeof names[fd] - 1);
        if (name && flags & O_TRUNC) {
            pthread_mutex_lock(&lock);
            record(TRUNCATE, name, 0, NULL, 0);
            pthread_mutex_unlock(&lock);
        }
    }
    return fd;
}

#define OPEN(NAME)                                                                                   \
    int NAME(const char *path, int flags, ...) {                                                     \
        va_list rest;                                                                                \
        va_start(rest, flags);                                                                       \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                    \
        va_end(rest);                                                                                \
        return opened(AT_FDCWD, path, flags, mode);                                                  \
    }
OPEN(open)
OPEN(open64)

int close(int fd) {
    if (fd >= 0 && fd < FDS_MAX) names[fd][0] = 0;
    return (int)syscall(SYS_close, fd);
}

static ssize_t written(int fd, const void *data, size_t length, uint64_t offset, long done) {
    const char *name = known(fd);
    (void)length;
    if (name && done > 0) {
        pthread_mutex_lock(&lock);
        record(WRITE, name, offset, data, (uint64_t)done);
        pthread_mutex_unlock(&lock);
    }
    return done;
}

ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return written(fd, data, length, (uint64_t)offset, syscall(SYS_pwrite64, fd, data, length, offset));
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    return written(fd, data, length, (uint64_t)offset, syscall(SYS_pwrite64, fd, data, length, offset));
}

/* Only files that are written from their beginning on, and never sought in, are written so. */
ssize_t write(int fd, const void *data, size_t length) {
    long done = syscall(SYS_write, fd, data, length);
    if (known(fd) && done > 0) {
        written(fd, data, length, positions[fd], done);
        positions[fd] += (uint64_t)done;
    }
    return done;
}

static int truncated(int fd, off64_t length) {
    int result = (int)syscall(SYS_ftruncate, fd, length);
    const char *name = known(fd);
    if (name && result == 0) {
        pthread_mutex_lock(&lock);
        record(TRUNCATE, name, (uint64_t)length, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int ftruncate(int fd, off_t length) { return truncated(fd, length); }
int ftruncate64(int fd, off64_t length) { return truncated(fd, length); }

static int synced(int fd, long number) {
    int result = (int)syscall(number, fd);
    const char *name = known(fd);
    if (name && result == 0) {
        pthread_mutex_lock(&lock);
        record(SYNC, name, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int fd) { return synced(fd, SYS_fsync); }
int fdatasync(int fd) { return synced(fd, SYS_fdatasync); }

int unlink(const char *path) {
    int result = (int)syscall(SYS_unlink, path);
    const char *name = of_folder(path);
    if (name && result == 0) {
        pthread_mutex_lock(&lock);
        record(UNLINK, name, 0, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}
