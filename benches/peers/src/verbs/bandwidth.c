/* The first rank sends so many messages of so many bytes to the second, which answers once: prints "mbit RATE". */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 64 };

int main(int argc, char **argv)
{
	MPI_Init(&argc, &argv);
	int rank;
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	int messages = argc > 1 ? atoi(argv[1]) : 1000, size = argc > 2 ? atoi(argv[2]) : 65536;
	char *all = malloc((size_t)size * WINDOW);
	if (!all)
		MPI_Abort(MPI_COMM_WORLD, 1);
	memset(all, rank, (size_t)size * WINDOW);
	MPI_Request requests[WINDOW];
	for (int i = 0; i < WINDOW; i++)
		requests[i] = MPI_REQUEST_NULL;
	MPI_Barrier(MPI_COMM_WORLD);
	double start = MPI_Wtime();
	for (int n = 0; n < messages; n++) {
		int at = n % WINDOW;
		MPI_Wait(&requests[at], MPI_STATUS_IGNORE);
		if (rank == 0)
			MPI_Isend(all + (size_t)at * size, size, MPI_BYTE, 1, 1, MPI_COMM_WORLD, &requests[at]);
		else
			MPI_Irecv(all + (size_t)at * size, size, MPI_BYTE, 0, 1, MPI_COMM_WORLD, &requests[at]);
	}
	MPI_Waitall(WINDOW, requests, MPI_STATUSES_IGNORE);
	char done = 0;
	if (rank == 0)
		MPI_Recv(&done, 1, MPI_BYTE, 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
	else
		MPI_Send(&done, 1, MPI_BYTE, 0, 2, MPI_COMM_WORLD);
	if (rank == 0)
		printf("mbit %.3f\n", (double)messages * size * 8e-6 / (MPI_Wtime() - start));
	MPI_Finalize();
	return 0;
}
