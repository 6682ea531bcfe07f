/* Peers in a process that is not there. */
#include "common.h"

int main(void)
{
	struct end e;
	open_end(&e);
	struct ibv_qp *qps[2];
	double start = seconds();
	for (int i = 0; i < 2; i++) {
		e.qp = qps[i] = make_qp(&e, &RC);
		struct names nobody = names_of(&e);
		/* The upper ten bits say which port a process has. Of the two neighbours one has a higher address: we ask there. */
		nobody.qpn = (e.qp->qp_num >> 14 == 0x3ff ? 0x3fe : 0x3ff) << 14 | 2;
		connect_qp(e.qp, &nobody, &RC);
		EQUAL(post_op(&e, i, IBV_WR_SEND, 0, 10, NULL), 0);
	}
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc;
		CHECK(poll_for(e.send_cq, &wc, 40));
		EQUAL(wc.status, IBV_WC_RETRY_EXC_ERR);
	}
	printf("after %.1f s\n", seconds() - start);
	e.qp = NULL;
	for (int i = 0; i < 2; i++)
		EQUAL(ibv_destroy_qp(qps[i]), 0);
	close_end(&e);
	puts("ok");
	return 0;
}
