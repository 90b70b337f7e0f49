/* A clock of day that is CLOCK_AHEAD seconds ahead, for a program and its children (LD_PRELOAD). How fast time passes stays
   the same. libfaketime does not do: PostgreSQL's timeouts never end under it, because a handler of signals that interrupts a
   wait gets the real time there. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static time_t ahead;

__attribute__((constructor)) static void begin(void) {
  const char *said = getenv("CLOCK_AHEAD");
  ahead = said ? atoll(said) : 0;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
  int failed = syscall(SYS_clock_gettime, clock, at);
  if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) at->tv_sec += ahead;
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

/* The kernel knows only its own clock. What is years from the start of the machine is a time of day. */
static struct timespec kernels(const struct timespec *until) {
  struct timespec real = *until;
  if (real.tv_sec > 1000000000) real.tv_sec -= ahead;
  return real;
}

int pthread_cond_timedwait(pthread_cond_t *restrict c, pthread_mutex_t *restrict m, const struct timespec *restrict until) {
  static int (*wait)(pthread_cond_t *, pthread_mutex_t *, const struct timespec *);
  if (!wait && !(wait = dlvsym(RTLD_NEXT, "pthread_cond_timedwait", "GLIBC_2.3.2")))
    wait = dlsym(RTLD_NEXT, "pthread_cond_timedwait");
  struct timespec real = kernels(until);
  return wait(c, m, &real);
}

int sem_timedwait(sem_t *restrict s, const struct timespec *restrict until) {
  static int (*wait)(sem_t *, const struct timespec *);
  if (!wait) wait = dlsym(RTLD_NEXT, "sem_timedwait");
  struct timespec real = kernels(until);
  return wait(s, &real);
}
