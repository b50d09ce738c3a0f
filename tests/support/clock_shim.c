/* Moves the clocks of the process into which it is preloaded, by the nanoseconds in a file. The first
   number is added to the wall clock. The second is subtracted from the monotonic clock, as if the machine
   had slept for that time. The boot clock is not changed. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int64_t offset(int which) {
    static const volatile int64_t *shared;
    if (!shared) {
        const char *path = getenv("DLOCK_CLOCK_OFFSET");
        int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
        void *page = file < 0 ? MAP_FAILED : mmap(NULL, 2 * sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
        static const int64_t none[2] = {0, 0};
        shared = page == MAP_FAILED ? none : page;
        if (file >= 0) close(file);
    }
    return shared[which];
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int failed = (int)syscall(SYS_clock_gettime, id, at);
    int is_wall = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE;
    int is_monotonic = id == CLOCK_MONOTONIC || id == CLOCK_MONOTONIC_COARSE || id == CLOCK_MONOTONIC_RAW;
    if (!failed && (is_wall || is_monotonic)) {
        int64_t nanos = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec + (is_wall ? offset(0) : -offset(1));
        at->tv_sec = nanos / 1000000000;
        at->tv_nsec = nanos % 1000000000;
    }
    return failed;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
