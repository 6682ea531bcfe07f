/* Groups of datagram queue pairs: members in two processes, one of them the sender's, and what is refused. */
#include "common.h"
#include <arpa/inet.h>

enum { MESSAGES = 20, Q_KEY = 0x1111 };

static union ibv_gid group_of(const char *text)
{
	union ibv_gid gid = { 0 };
	gid.raw[10] = gid.raw[11] = 0xff;
	EQUAL(inet_pton(AF_INET, text, gid.raw + 12), 1);
	return gid;
}

static void ready(struct end *e)
{
	struct settings ud = RC;
	ud.type = IBV_QPT_UD;
	struct names none = { 0 };
	e->qp = make_qp(e, &ud);
	connect_qp(e->qp, &none, &ud);
}

/* Datagrams of the group, each with the number that it was sent with. */
static void expect_all(struct end *e, uint32_t from)
{
	unsigned char seen[MESSAGES] = { 0 };
	for (int i = 0; i < MESSAGES; i++) {
		struct ibv_wc wc;
		CHECK(poll_for(e->recv_cq, &wc, 20));
		EQUAL(wc.status, IBV_WC_SUCCESS);
		EQUAL(wc.byte_len, 40 + 100);
		EQUAL(wc.src_qp, from);
		unsigned char *grh = (unsigned char *)e->bytes + wc.wr_id * 1000;
		/* The address that it was sent to is the group's. */
		CHECK(grh[36] == 239 && grh[39] == 9);
		int which = grh[40];
		CHECK(which < MESSAGES && !seen[which]++ && grh[139] == which);
	}
}

static void post_receives(struct end *e)
{
	for (int i = 0; i < MESSAGES; i++)
		EQUAL(post_recv(e, i, i * 1000, 200), 0);
}

int main(void)
{
	int other;
	pid_t child = split(&other);
	struct end e;
	open_end(&e);
	ready(&e);
	union ibv_gid group = group_of("239.77.1.9"), host = group_of("10.0.0.1");
	if (!child) {
		post_receives(&e);
		EQUAL(ibv_attach_mcast(e.qp, &group, 0), 0);
		say(other);
		uint32_t from;
		CHECK(recv(other, &from, sizeof from, 0) == sizeof from);
		expect_all(&e, from);
		/* No longer a member: it gets nothing more. */
		EQUAL(ibv_detach_mcast(e.qp, &group, 0), 0);
		post_receives(&e);
		say(other);
		hear(other);
		struct ibv_wc wc;
		EQUAL(poll_for(e.recv_cq, &wc, 0.3), 0);
		close_end(&e);
		return 0;
	}
	/* Only datagram queue pairs, only groups, and nothing that is not joined. */
	struct ibv_qp *rc = make_qp(&e, &RC);
	EQUAL(ibv_attach_mcast(rc, &group, 0), EINVAL);
	EQUAL(ibv_destroy_qp(rc), 0);
	EQUAL(ibv_attach_mcast(e.qp, &host, 0), EINVAL);
	EQUAL(ibv_detach_mcast(e.qp, &group, 0), EINVAL);

	hear(other);
	/* The sender is a member, too, and gets its own. */
	EQUAL(ibv_attach_mcast(e.qp, &group, 0), 0);
	EQUAL(ibv_attach_mcast(e.qp, &group, 0), 0);
	EQUAL(ibv_destroy_qp(e.qp), EBUSY);
	post_receives(&e);
	struct ibv_ah_attr a = { .is_global = 1, .port_num = 1 };
	a.grh.dgid = group;
	a.grh.hop_limit = 1;
	struct ibv_ah *ah = ibv_create_ah(e.pd, &a);
	CHECK(ah);
	CHECK(send(other, &e.qp->qp_num, sizeof e.qp->qp_num, 0) == sizeof e.qp->qp_num);
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < MESSAGES; i++) {
			char *at = e.bytes + (1 << 19) + i * 100;
			memset(at, i, 100);
			struct ibv_sge sge = { (uintptr_t)at, 100, e.mr->lkey };
			struct ibv_send_wr wr = { .wr_id = i, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED }, *bad;
			wr.wr.ud.ah = ah;
			wr.wr.ud.remote_qpn = 0xffffff;
			/* What has another key is for nobody. */
			wr.wr.ud.remote_qkey = round ? Q_KEY + 1 : Q_KEY;
			EQUAL(ibv_post_send(e.qp, &wr, &bad), 0);
		}
		for (int i = 0; i < MESSAGES; i++)
			expect(e.send_cq, i, IBV_WC_SUCCESS);
		if (!round) {
			expect_all(&e, e.qp->qp_num);
			post_receives(&e);
			hear(other);
		}
	}
	struct ibv_wc wc;
	EQUAL(poll_for(e.recv_cq, &wc, 0.2), 0);
	say(other);
	wait_for(child);
	EQUAL(ibv_detach_mcast(e.qp, &group, 0), 0);
	EQUAL(ibv_detach_mcast(e.qp, &group, 0), EINVAL);
	EQUAL(ibv_destroy_ah(ah), 0);
	close_end(&e);
	puts("ok");
	return 0;
}
