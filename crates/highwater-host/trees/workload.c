/* The processes that make a kernel's counters wrong, alive until they are killed.
 *
 * One program, three names (links to it):
 *   rssdemo THREADS PAGES   THREADS threads touch PAGES pages each, then sleep
 *   hop OPS PAGES           a thread maps and unmaps up to PAGES pages at a time on random CPUs, OPS
 *                           times; then it touches just under a batch of pages on each CPU
 *   hold PAGES              touches PAGES pages
 *
 * Each writes one line to the file named by the environment variable LINE, then sleeps: the numbers
 * of the kernel's cheap counter (/proc/self/stat, field 24), of statm and of the walk of the page
 * table (smaps_rollup), all in pages of 4 KiB. The line is written when two measurements in
 * succession agree, so that the measurement itself touches no further page.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE 4096L

static char text[8192];

static char *content(const char *path) {
	int file = open(path, O_RDONLY);
	ssize_t length = file < 0 ? -1 : read(file, text, sizeof text - 1);
	if (length < 0) {
		perror(path);
		exit(1);
	}
	text[length] = 0;
	close(file);
	return text;
}

static long stat_pages(void) {
	char *field = strrchr(content("/proc/self/stat"), ')') + 1;
	for (int i = 0; i < 21; i++)
		field = strchr(field + 1, ' ');
	return atol(field + 1);
}

static long statm_pages(void) {
	return atol(strchr(content("/proc/self/statm"), ' ') + 1);
}

static long true_pages(void) {
	return atol(strstr(content("/proc/self/smaps_rollup"), "Rss:") + 4) / 4;
}

static void report(const char *what) {
	static char line[512], before[512];
	for (int round = 0; round < 20; round++) {
		long truth = true_pages(), cheap = stat_pages(), statm = statm_pages();
		snprintf(line, sizeof line,
			 "%s pid=%d cpus=%ld stat_pages=%ld statm_pages=%ld true_pages=%ld "
			 "error_pages=%ld\n",
			 what, getpid(), sysconf(_SC_NPROCESSORS_ONLN), cheap, statm, truth,
			 cheap - truth);
		if (!strcmp(line, before))
			break;
		strcpy(before, line);
	}
	char unfinished[256];
	const char *path = getenv("LINE");
	snprintf(unfinished, sizeof unfinished, "%s.new", path);
	int file = open(unfinished, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	if (file < 0 || write(file, line, strlen(line)) < 0 || rename(unfinished, path)) {
		perror(path);
		exit(1);
	}
	for (;;)
		pause();
}

static char *map(long pages) {
	char *start = mmap(0, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (start == MAP_FAILED) {
		perror("mmap");
		exit(1);
	}
	madvise(start, pages * PAGE, MADV_NOHUGEPAGE);
	for (long i = 0; i < pages; i++)
		start[i * PAGE] = 1;
	return start;
}

static atomic_long touched;
static long pages_each;

static void *toucher(void *unused) {
	map(pages_each);
	atomic_fetch_add(&touched, 1);
	for (;;)
		pause();
	return unused;
}

static void rssdemo(long threads, long pages) {
	pages_each = pages;
	pthread_attr_t attributes;
	pthread_attr_init(&attributes);
	pthread_attr_setstacksize(&attributes, 65536);
	for (long i = 0; i < threads; i++) {
		pthread_t thread;
		int error = pthread_create(&thread, &attributes, toucher, 0);
		if (error) {
			fprintf(stderr, "thread %ld: %s\n", i, strerror(error));
			exit(1);
		}
	}
	while (atomic_load(&touched) < threads)
		usleep(10000);
	report("rssdemo");
}

static void run_on(long cpu) {
	cpu_set_t *set = CPU_ALLOC(8192);
	size_t size = CPU_ALLOC_SIZE(8192);
	CPU_ZERO_S(size, set);
	CPU_SET_S(cpu, size, set);
	if (sched_setaffinity(0, size, set)) {
		perror("sched_setaffinity");
		exit(1);
	}
	CPU_FREE(set);
}

static unsigned long seed = 88172645463325252UL;

static unsigned long any(void) {
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed;
}

static void hop(long ops, long pages) {
	long cpus = sysconf(_SC_NPROCESSORS_ONLN), size[64] = {0};
	char *area[64] = {0};
	for (long i = 0; i < ops; i++) {
		run_on(any() % cpus);
		long k = any() % 64;
		if (size[k]) {
			munmap(area[k], size[k] * PAGE);
			size[k] = 0;
		} else {
			size[k] = 1 + any() % pages;
			area[k] = map(size[k]);
		}
	}
	for (long k = 0; k < 64; k++)
		if (size[k])
			munmap(area[k], size[k] * PAGE);
	long batch = 2 * cpus > 32 ? 2 * cpus : 32;
	for (long cpu = 0; cpu < cpus; cpu++) {
		run_on(cpu);
		map(batch - 24);
	}
	report("hop");
}

int main(int count, char **argument) {
	const char *name = strrchr(argument[0], '/');
	name = name ? name + 1 : argument[0];
	long first = count > 1 ? atol(argument[1]) : 0, second = count > 2 ? atol(argument[2]) : 0;
	if (!getenv("LINE") || first <= 0) {
		fprintf(stderr, "usage: LINE=FILE rssdemo THREADS PAGES | hop OPS PAGES | hold PAGES\n");
		return 2;
	}
	if (!strcmp(name, "rssdemo"))
		rssdemo(first, second);
	else if (!strcmp(name, "hop"))
		hop(first, second);
	map(first);
	report("hold");
}
