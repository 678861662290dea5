/* A folder seen through a slow network: every operation waits, and all bytes share one link.
 *
 *   slowfs SOURCE MOUNTPOINT LATENCY_US MB_PER_S      stays in the foreground; SIGTERM unmounts and ends it
 *   cc -O2 slowfs.c -o slowfs $(pkg-config --cflags --libs fuse3) -lpthread
 */
#define FUSE_USE_VERSION 31
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fuse.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char source[4096];
static double latency_s, bytes_per_s, link_free_at;
static pthread_mutex_t link_lock = PTHREAD_MUTEX_INITIALIZER;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

static void wait_until(double when) {
    struct timespec t = {(time_t)when, (long)((when - (time_t)when) * 1e9)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {
    }
}

static void round_trip(void) { wait_until(now() + latency_s); }

/* The link is busy until link_free_at; these bytes follow behind. Latency and transfer overlap between requests. */
static void transfer(size_t size) {
    pthread_mutex_lock(&link_lock);
    double begin = now();
    if (link_free_at < begin) link_free_at = begin;
    link_free_at += size / bytes_per_s;
    double end = link_free_at;
    pthread_mutex_unlock(&link_lock);
    wait_until(end > begin + latency_s ? end : begin + latency_s);
}

static void locate(char *full, const char *path) { snprintf(full, 8192, "%s%s", source, path); }

static int slow_getattr(const char *path, struct stat *st, struct fuse_file_info *fi) {
    char full[8192];
    (void)fi;
    round_trip();
    locate(full, path);
    return lstat(full, st) == -1 ? -errno : 0;
}

static int slow_readdir(const char *path, void *buffer, fuse_fill_dir_t fill, off_t offset, struct fuse_file_info *fi,
                        enum fuse_readdir_flags flags) {
    char full[8192];
    (void)offset, (void)fi, (void)flags;
    round_trip();
    locate(full, path);
    DIR *folder = opendir(full);
    if (folder == NULL) return -errno;
    struct dirent *entry;
    while ((entry = readdir(folder)) != NULL) fill(buffer, entry->d_name, NULL, 0, 0);
    closedir(folder);
    return 0;
}

static int slow_open(const char *path, struct fuse_file_info *fi) {
    char full[8192];
    round_trip();
    locate(full, path);
    int fd = open(full, fi->flags);
    if (fd == -1) return -errno;
    fi->fh = fd;
    return 0;
}

/* Writing costs a round trip and no bandwidth: what is measured here is reading. */
static int slow_create(const char *path, mode_t mode, struct fuse_file_info *fi) {
    char full[8192];
    round_trip();
    locate(full, path);
    int fd = open(full, fi->flags | O_CREAT, mode);
    if (fd == -1) return -errno;
    fi->fh = fd;
    return 0;
}

static int slow_write(const char *path, const char *data, size_t size, off_t offset, struct fuse_file_info *fi) {
    (void)path;
    ssize_t done = pwrite(fi->fh, data, size, offset);
    return done == -1 ? -errno : done;
}

static int slow_fsync(const char *path, int only_data, struct fuse_file_info *fi) {
    (void)path, (void)only_data;
    return fsync(fi->fh) == -1 ? -errno : 0;
}

static int slow_mkdir(const char *path, mode_t mode) {
    char full[8192];
    round_trip();
    locate(full, path);
    return mkdir(full, mode) == -1 ? -errno : 0;
}

static int slow_remove(const char *path) {
    char full[8192];
    round_trip();
    locate(full, path);
    return remove(full) == -1 ? -errno : 0;
}

static int slow_rename(const char *path, const char *other, unsigned int flags) {
    char full[8192], goal[8192];
    if (flags) return -EINVAL;
    round_trip();
    locate(full, path), locate(goal, other);
    return rename(full, goal) == -1 ? -errno : 0;
}

static int slow_truncate(const char *path, off_t size, struct fuse_file_info *fi) {
    char full[8192];
    (void)fi;
    locate(full, path);
    return truncate(full, size) == -1 ? -errno : 0;
}

static int slow_chmod(const char *path, mode_t mode, struct fuse_file_info *fi) {
    char full[8192];
    (void)fi;
    locate(full, path);
    return chmod(full, mode) == -1 ? -errno : 0;
}

static int slow_utimens(const char *path, const struct timespec times[2], struct fuse_file_info *fi) {
    char full[8192];
    (void)fi;
    locate(full, path);
    return utimensat(AT_FDCWD, full, times, 0) == -1 ? -errno : 0;
}

static int slow_link(const char *path, const char *other) {
    char full[8192], goal[8192];
    round_trip();
    locate(full, path), locate(goal, other);
    return link(full, goal) == -1 ? -errno : 0;
}

static int slow_read(const char *path, char *buffer, size_t size, off_t offset, struct fuse_file_info *fi) {
    (void)path;
    ssize_t got = pread(fi->fh, buffer, size, offset);
    if (got == -1) return -errno;
    transfer(got);
    return got;
}

static int slow_release(const char *path, struct fuse_file_info *fi) {
    (void)path;
    close(fi->fh);
    return 0;
}

static void *slow_init(struct fuse_conn_info *conn, struct fuse_config *config) {
    config->use_ino = 1;
    config->entry_timeout = config->attr_timeout = 1.0;
    conn->max_readahead = 8 << 20;
    conn->max_background = 64;
    return NULL;
}

static const struct fuse_operations operations = {
    .init = slow_init,
    .getattr = slow_getattr,
    .readdir = slow_readdir,
    .open = slow_open,
    .read = slow_read,
    .release = slow_release,
    .create = slow_create,
    .write = slow_write,
    .fsync = slow_fsync,
    .mkdir = slow_mkdir,
    .unlink = slow_remove,
    .rmdir = slow_remove,
    .rename = slow_rename,
    .truncate = slow_truncate,
    .chmod = slow_chmod,
    .utimens = slow_utimens,
    .link = slow_link,
};

int main(int argc, char **argv) {
    if (argc != 5 || realpath(argv[1], source) == NULL) {
        fprintf(stderr, "usage: slowfs SOURCE MOUNTPOINT LATENCY_US MB_PER_S\n");
        return 2;
    }
    latency_s = atof(argv[3]) * 1e-6;
    bytes_per_s = atof(argv[4]) * 1e6;
    char *words[] = {argv[0], argv[2], "-f", "-o", "fsname=slowfs", NULL};
    return fuse_main(5, words, &operations, NULL);
}
