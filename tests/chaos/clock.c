/* LD_PRELOAD: the wall clock plus the seconds that stand in the file CHAOS_CLOCK; all other clocks are left alone.
   libfaketime 0.9.10 makes time.sleep of Python 3.11 fail (clock_nanosleep with TIMER_ABSTIME: EINVAL). */
#include <stddef.h>
#include <stdlib.h>
#include <fcntl.h>
#include <unistd.h>
#include <time.h>
#include <sys/time.h>
#include <sys/syscall.h>

static long offset_s(void)
{
    char text[32];
    const char *path = getenv("CHAOS_CLOCK");
    long count, handle = path ? syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC) : -1;
    if (handle < 0)
        return 0;
    count = syscall(SYS_read, handle, text, sizeof text - 1);
    syscall(SYS_close, handle);
    if (count <= 0)
        return 0;
    text[count] = 0;
    return strtol(text, NULL, 10);
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int code = syscall(SYS_clock_gettime, clock, now);
    if (code == 0 && (clock == CLOCK_REALTIME || clock == 5 /* CLOCK_REALTIME_COARSE */))
        now->tv_sec += offset_s();
    return code;
}

int gettimeofday(struct timeval *now, void *zone)
{
    struct timespec precise;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
        return -1;
    now->tv_sec = precise.tv_sec;
    now->tv_usec = precise.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result != NULL)
        *result = now.tv_sec;
    return now.tv_sec;
}
