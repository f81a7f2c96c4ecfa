/* Runs tasks on several threads. */
#pragma once
#include <pthread.h>
#include <stdint.h>

#define MOST_THREADS 64

/* Processes the items `from`, ..., `to` - 1. */
typedef void task_function(const void *context, int64_t from, int64_t to);

typedef struct { task_function *run; const void *context; int64_t next, size, end; } task_queue;

static void *work_off(void *argument) {
    task_queue *queue = argument;
    for (;;) {
        int64_t from = __atomic_fetch_add(&queue->next, queue->size, __ATOMIC_RELAXED);
        if (from >= queue->end) return 0;
        queue->run(queue->context, from, from + queue->size < queue->end ? from + queue->size : queue->end);
    }
}

/* Processes the items 0, ..., `end` - 1 in tasks of `size` items. Results must not depend on the number of threads.
 * Threads are started for each call, which takes about 20 microseconds per thread. There is no pool that a fork could
 * break. If a thread cannot be started, the others do its work. */
static void run_tasks(task_function *run, const void *context, int64_t size, int64_t end, int64_t threads) {
    task_queue queue = {run, context, 0, size, end};
    pthread_t others[MOST_THREADS];
    int64_t started = 0, tasks = (end + size - 1) / size;
    if (threads > MOST_THREADS) threads = MOST_THREADS;
    if (threads > tasks) threads = tasks;
    while (started + 1 < threads && !pthread_create(&others[started], 0, work_off, &queue)) started++;
    work_off(&queue);
    while (started) pthread_join(others[--started], 0);
}
