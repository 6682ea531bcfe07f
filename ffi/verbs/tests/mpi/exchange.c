/* An MPI program that checks what it receives: messages of all sizes, collectives, and one-sided windows. Ends with the line
 * "RANKS ranks on HOSTS hosts agree".
 *
 * With the argument `gather-to-first`, nothing is gathered by other ranks than the first: MPICH 4.0 receives what wraps around by a type of
 * many pieces, and cannot unpack a message that comes in several parts into such a one ("Message truncated", over TCP as well). */
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                                                    \
	do {                                                                                                \
		if (!(condition)) {                                                                         \
			fprintf(stderr, "rank %d, line %d: failed: %s\n", rank, __LINE__, #condition);      \
			MPI_Abort(MPI_COMM_WORLD, 1);                                                       \
		}                                                                                           \
	} while (0)

enum { BIG = 16 << 20, WINDOW = 1 << 16, SMALL_MESSAGES = 500 };

static int rank, ranks;
static double start;
static int gather_to_first;

static void *buffer(size_t len)
{
	void *p = malloc(len);
	CHECK(p);
	memset(p, 0, len);
	return p;
}

/* What byte `at` of message `which` is. */
static unsigned char expected(int which, size_t at)
{
	return (unsigned char)(which * 31 + at * 7 + (at >> 11));
}

static void fill(unsigned char *to, size_t len, int which)
{
	for (size_t i = 0; i < len; i++)
		to[i] = expected(which, i);
}

static int is_right(const unsigned char *what, size_t len, int which)
{
	for (size_t i = 0; i < len; i++)
		if (what[i] != expected(which, i))
			return 0;
	return 1;
}

/* Each sends to the next one and receives from the one before. */
static void ring_of_messages(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	static const int sizes[] = { 0, 1, 64, 4096, 70000, 1 << 20, BIG };
	unsigned char *out = buffer(BIG), *in = buffer(BIG);
	for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
		MPI_Status status;
		int n;
		fill(out, sizes[i], rank + 3);
		memset(in, 0, sizes[i]);
		MPI_Sendrecv(out, sizes[i], MPI_BYTE, next, i, in, BIG, MPI_BYTE, before, i, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &n);
		CHECK(n == sizes[i] && is_right(in, n, before + 3));
	}
	free(out);
	free(in);
}

/* Small messages that are received in the opposite order of their tags. */
static void messages_out_of_order(void)
{
	int next = (rank + 1) % ranks, before = (rank + ranks - 1) % ranks;
	static int out[SMALL_MESSAGES], in[SMALL_MESSAGES];
	static MPI_Request requests[2 * SMALL_MESSAGES];
	for (int i = 0; i < SMALL_MESSAGES; i++) {
		out[i] = rank * 1000 + i;
		MPI_Isend(&out[i], 1, MPI_INT, next, i, MPI_COMM_WORLD, &requests[i]);
	}
	for (int i = SMALL_MESSAGES - 1; i >= 0; i--)
		MPI_Irecv(&in[i], 1, MPI_INT, before, i, MPI_COMM_WORLD, &requests[SMALL_MESSAGES + i]);
	MPI_Waitall(2 * SMALL_MESSAGES, requests, MPI_STATUSES_IGNORE);
	for (int i = 0; i < SMALL_MESSAGES; i++)
		CHECK(in[i] == before * 1000 + i);
}

static void collectives(int n)
{
	int64_t *own = buffer(n * sizeof *own), *sum = buffer(n * sizeof *own);
	int64_t *all = buffer((size_t)n * ranks * sizeof *own), *turned = buffer((size_t)n * ranks * sizeof *own);
	for (int i = 0; i < n; i++)
		own[i] = (int64_t)rank * 1000000 + i;
	MPI_Allreduce(own, sum, n, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < n; i++)
		CHECK(sum[i] == (int64_t)ranks * (ranks - 1) / 2 * 1000000 + (int64_t)ranks * i);
	MPI_Allgather(own, n, MPI_INT64_T, all, n, MPI_INT64_T, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < n; i++)
			CHECK(all[(size_t)r * n + i] == (int64_t)r * 1000000 + i);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < n; i++)
			all[(size_t)r * n + i] = (int64_t)rank * 1000 + r;
	MPI_Alltoall(all, n, MPI_INT64_T, turned, n, MPI_INT64_T, MPI_COMM_WORLD);
	for (int r = 0; r < ranks; r++)
		for (int i = 0; i < n; i++)
			CHECK(turned[(size_t)r * n + i] == (int64_t)r * 1000 + rank);
	for (int root = 0; root < ranks; root++) {
		for (int i = 0; i < n; i++)
			sum[i] = rank == root ? root * 7 + i : -1;
		MPI_Bcast(sum, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(sum[i] == root * 7 + i);
		if (root == 0 || !gather_to_first)
			MPI_Gather(own, n, MPI_INT64_T, all, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		else if (rank == root)
			for (size_t i = 0; i < (size_t)n * ranks; i++)
				all[i] = (int64_t)(i / n) * 1000000 + i % n;
		CHECK(rank != root || all[(size_t)(ranks - 1) * n] == (int64_t)(ranks - 1) * 1000000);
		MPI_Scatter(all, n, MPI_INT64_T, sum, n, MPI_INT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; i < n; i++)
			CHECK(sum[i] == own[i]);
		MPI_Barrier(MPI_COMM_WORLD);
	}
	int64_t mine = rank + 1, before = 0;
	MPI_Scan(&mine, &before, 1, MPI_INT64_T, MPI_SUM, MPI_COMM_WORLD);
	CHECK(before == (int64_t)(rank + 1) * (rank + 2) / 2);
	free(own);
	free(sum);
	free(all);
	free(turned);
}

/* Between fences: each writes into all others, reads what they have, and adds. */
static void windows_with_fences(void)
{
	int64_t *base, *got = buffer(WINDOW * sizeof *got);
	MPI_Win win;
	MPI_Win_allocate((MPI_Aint)WINDOW * ranks * sizeof *base, sizeof *base, MPI_INFO_NULL, MPI_COMM_WORLD, &base, &win);
	memset(base, 0, (size_t)WINDOW * ranks * sizeof *base);
	for (int i = 0; i < WINDOW; i++)
		got[i] = (int64_t)rank * WINDOW + i;
	MPI_Win_fence(0, win);
	for (int to = 0; to < ranks; to++)
		MPI_Put(got, WINDOW, MPI_INT64_T, to, (MPI_Aint)rank * WINDOW, WINDOW, MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (size_t i = 0; i < (size_t)WINDOW * ranks; i++)
		CHECK(base[i] == (int64_t)i);
	int next = (rank + 1) % ranks;
	memset(got, 0, WINDOW * sizeof *got);
	MPI_Win_fence(0, win);
	MPI_Get(got, WINDOW, MPI_INT64_T, next, (MPI_Aint)rank * WINDOW, WINDOW, MPI_INT64_T, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < WINDOW; i++)
		CHECK(got[i] == (int64_t)rank * WINDOW + i);
	for (int i = 0; i < 1000; i++)
		got[i] = rank + 1;
	MPI_Win_fence(0, win);
	for (int to = 0; to < ranks; to++)
		MPI_Accumulate(got, 1000, MPI_INT64_T, to, 0, 1000, MPI_INT64_T, MPI_SUM, win);
	MPI_Win_fence(0, win);
	for (int i = 0; i < 1000; i++)
		CHECK(base[i] == i + (int64_t)ranks * (ranks + 1) / 2);
	MPI_Win_free(&win);
	free(got);
}

/* In an epoch of all: a counter that all add to, and one that is changed by who has swapped its number into a place. */
static void windows_with_atomics(MPI_Win win)
{
	enum { TIMES = 50 };
	int64_t one = 1, before = 0, last = -1, nobody = 0, mine = rank + 1, found, count;
	MPI_Win_lock_all(0, win);
	for (int i = 0; i < TIMES; i++) {
		MPI_Fetch_and_op(&one, &before, MPI_INT64_T, 0, 0, MPI_SUM, win);
		MPI_Win_flush(0, win);
		CHECK(before > last && before < (int64_t)TIMES * ranks);
		last = before;
	}
	for (int i = 0; i < 10; i++) {
		do {
			MPI_Compare_and_swap(&mine, &nobody, &found, MPI_INT64_T, 0, 1, win);
			MPI_Win_flush(0, win);
		} while (found != 0);
		MPI_Get(&count, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		count++;
		MPI_Put(&count, 1, MPI_INT64_T, 0, 2, 1, MPI_INT64_T, win);
		MPI_Win_flush(0, win);
		MPI_Accumulate(&nobody, 1, MPI_INT64_T, 0, 1, 1, MPI_INT64_T, MPI_REPLACE, win);
		MPI_Win_flush(0, win);
	}
	MPI_Win_unlock_all(win);
	MPI_Barrier(MPI_COMM_WORLD);
	int64_t ends[3];
	MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, win);
	MPI_Get(ends, 3, MPI_INT64_T, 0, 0, 3, MPI_INT64_T, win);
	MPI_Win_unlock(0, win);
	CHECK(ends[0] == (int64_t)TIMES * ranks && ends[1] == 0 && ends[2] == 10 * ranks);
}

/* Under locks that one has at a time: a number of each rank's that all others raise. */
static void windows_with_locks(MPI_Win win)
{
	for (int i = 0; i < 10; i++) {
		int64_t count;
		int to = (rank + i) % ranks;
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, to, 0, win);
		MPI_Get(&count, 1, MPI_INT64_T, to, 3, 1, MPI_INT64_T, win);
		MPI_Win_flush(to, win);
		count++;
		MPI_Put(&count, 1, MPI_INT64_T, to, 3, 1, MPI_INT64_T, win);
		MPI_Win_unlock(to, win);
	}
	MPI_Barrier(MPI_COMM_WORLD);
	int64_t sum = 0, count;
	for (int of = 0; of < ranks; of++) {
		MPI_Win_lock(MPI_LOCK_SHARED, of, 0, win);
		MPI_Get(&count, 1, MPI_INT64_T, of, 3, 1, MPI_INT64_T, win);
		MPI_Win_unlock(of, win);
		sum += count;
	}
	CHECK(sum == 10 * ranks);
}

static int count_hosts(void)
{
	char own[MPI_MAX_PROCESSOR_NAME] = { 0 }, *all = buffer((size_t)ranks * sizeof own);
	int len, hosts = 0;
	MPI_Get_processor_name(own, &len);
	MPI_Allgather(own, sizeof own, MPI_CHAR, all, sizeof own, MPI_CHAR, MPI_COMM_WORLD);
	for (int i = 0; i < ranks; i++) {
		int seen = 0;
		for (int k = 0; k < i; k++)
			seen |= !strcmp(all + i * sizeof own, all + k * sizeof own);
		hosts += !seen;
	}
	free(all);
	return hosts;
}

/* What is done: of a program that stops one sees how far it came. */
static void said(const char *what)
{
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		printf("%6.2f s: %s\n", MPI_Wtime() - start, what);
		fflush(stdout);
	}
}

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	start = MPI_Wtime();
	gather_to_first = argc > 1 && !strcmp(argv[1], "gather-to-first");
	int hosts = count_hosts();
	said("ranks have met");
	ring_of_messages();
	said("messages of all sizes");
	messages_out_of_order();
	said("messages out of order");
	collectives(1);
	collectives(3000);
	collectives(100000);
	said("collectives");
	windows_with_fences();
	said("windows with fences");
	int64_t memory[4] = { 0 };
	MPI_Win win;
	MPI_Win_create(memory, sizeof memory, sizeof *memory, MPI_INFO_NULL, MPI_COMM_WORLD, &win);
	windows_with_atomics(win);
	said("windows with atomic operations");
	windows_with_locks(win);
	said("windows with locks");
	MPI_Win_free(&win);
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("%d ranks on %d hosts agree\n", ranks, hosts);
	MPI_Finalize();
	return 0;
}
