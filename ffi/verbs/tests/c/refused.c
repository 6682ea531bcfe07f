/* A queue pair that is destroyed before its program named the peer: who asked for it is told. And a process that is not there. */
#include "common.h"

int main(void)
{
	int socket;
	pid_t child = split(&socket);
	struct end e;
	open_end(&e);
	/* Of two queue pairs the one with the lower address asks: with several pairs in both directions some of each end do. */
	enum { PAIRS = 6 };
	struct ibv_qp *qps[PAIRS];
	struct names peers[PAIRS];
	for (int i = 0; i < PAIRS; i++) {
		e.qp = qps[i] = make_qp(&e, &RC);
		peers[i] = swap_names(socket, &e);
	}
	e.qp = NULL;
	if (child == 0) {
		/* The other end has connected all; none of ours is. */
		hear(socket);
		usleep(300000);
		for (int i = 0; i < PAIRS; i++)
			EQUAL(ibv_destroy_qp(qps[i]), 0);
		say(socket);
		hear(socket);
		close_end(&e);
		_exit(0);
	}
	for (int i = 0; i < PAIRS; i++)
		connect_qp(qps[i], &peers[i], &RC);
	say(socket);
	hear(socket);
	/* Those that asked were refused, and fail at once. Those that wait to be asked wait on, as for a program that is slow. */
	int failed = 0;
	for (int i = 0; i < PAIRS; i++) {
		e.qp = qps[i];
		EQUAL(post_op(&e, i, IBV_WR_SEND, 0, 10, NULL), 0);
	}
	struct ibv_wc wc;
	while (failed < PAIRS && poll_for(e.send_cq, &wc, 2)) {
		CHECK(wc.status != IBV_WC_SUCCESS);
		failed++;
	}
	printf("%d of %d asked\n", failed, PAIRS);
	CHECK(failed == 0 || failed == PAIRS);
	e.qp = NULL;
	for (int i = 0; i < PAIRS; i++)
		EQUAL(ibv_destroy_qp(qps[i]), 0);
	say(socket);
	wait_for(child);
	close_end(&e);
	puts("ok");
	return 0;
}
