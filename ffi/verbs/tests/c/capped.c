/* Sends for some seconds with a traffic class, messages or datagrams; the receiver tells by its own clock how fast it came. */
#include "common.h"

enum { ROOM = 1 << 16, DEPTH = 16 };

static const double LASTS = 3;

int main(void)
{
	int socket;
	pid_t child = split(&socket);
	struct end e;
	open_end(&e);
	int datagrams = getenv("CAPPED_DATAGRAMS") != NULL;
	struct settings how = RC;
	if (datagrams)
		how.type = IBV_QPT_UD;
	uint32_t size = datagrams ? 4096 : ROOM;
	e.qp = make_qp(&e, &how);
	struct names peer = swap_names(socket, &e);
	EQUAL(to_init(e.qp), 0);
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer.qpn, .max_dest_rd_atomic = 8 };
	a.ah_attr.is_global = 1;
	a.ah_attr.port_num = 1;
	a.ah_attr.grh.dgid = peer.gid;
	a.ah_attr.grh.traffic_class = 10 << 2;
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	EQUAL(ibv_modify_qp(e.qp, &a, datagrams ? IBV_QP_STATE : mask), 0);
	EQUAL(to_rts(e.qp, &how), 0);
	struct ibv_ah *ah = datagrams ? ibv_create_ah(e.pd, &a.ah_attr) : NULL;
	struct ibv_sge sge = { (uintptr_t)e.bytes, size, e.mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 1, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
	if (datagrams) {
		CHECK(ah);
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = peer.qpn;
		wr.wr.ud.remote_qkey = 0x1111;
	}
	struct ibv_wc wc;
	double begin = seconds();
	if (child == 0) {
		int posted = 0;
		while (seconds() - begin < LASTS) {
			if (posted < DEPTH) {
				EQUAL(ibv_post_send(e.qp, &wr, &bad), 0);
				posted++;
			} else if (ibv_poll_cq(e.send_cq, 1, &wc)) {
				EQUAL(wc.status, IBV_WC_SUCCESS);
				posted--;
			}
		}
		say(socket);
		for (; posted; posted--)
			expect(e.send_cq, 1, IBV_WC_SUCCESS);
		hear(socket);
		if (ah)
			EQUAL(ibv_destroy_ah(ah), 0);
		close_end(&e);
		return 0;
	}
	for (int i = 0; i < DEPTH; i++)
		EQUAL(post_recv(&e, i, i * ROOM, ROOM), 0);
	/* From the end of the first second on: what bursts at first is none of it. */
	double first = 0, last = 0, bytes = 0;
	while (poll_for(e.recv_cq, &wc, 1)) {
		EQUAL(wc.status, IBV_WC_SUCCESS);
		last = seconds();
		if (last - begin > 1) {
			if (first == 0)
				first = last;
			else
				bytes += wc.byte_len;
		}
		EQUAL(post_recv(&e, wc.wr_id, wc.wr_id * ROOM, ROOM), 0);
	}
	say(socket);
	wait_for(child);
	if (ah)
		EQUAL(ibv_destroy_ah(ah), 0);
	printf("mbit %d\n", (int)(bytes * 8 / (last - first) / 1e6));
	close_end(&e);
	puts("ok");
	return 0;
}
