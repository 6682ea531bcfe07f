/* solicited ADDRESS PORT: sends three messages of 16 bytes, of which the second one asks for the receiver's attention,
 * and waits for one of 16 bytes. No program of rdma-core sends such messages. */
#include <rdma/rdma_cma.h>
#include <rdma/rdma_verbs.h>
#include <stdio.h>
#include <string.h>

enum { SIZE = 16, MESSAGES = 3 };

static int fail(const char *what)
{
	perror(what);
	return 1;
}

int main(int argc, char **argv)
{
	struct rdma_addrinfo hints = { .ai_port_space = RDMA_PS_TCP }, *to;
	struct ibv_qp_init_attr attr = {
		.cap = { .max_send_wr = MESSAGES, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1 },
		.sq_sig_all = 1,
	};
	static char out[SIZE], in[SIZE];
	struct rdma_cm_id *id;
	struct ibv_mr *out_mr, *in_mr;
	struct ibv_wc wc;
	int i;

	if (argc != 3)
		return 2;
	if (rdma_getaddrinfo(argv[1], argv[2], &hints, &to))
		return fail("rdma_getaddrinfo");
	if (rdma_create_ep(&id, to, NULL, &attr))
		return fail("rdma_create_ep");
	out_mr = rdma_reg_msgs(id, out, SIZE);
	in_mr = rdma_reg_msgs(id, in, SIZE);
	if (!out_mr || !in_mr)
		return fail("rdma_reg_msgs");
	if (rdma_post_recv(id, NULL, in, SIZE, in_mr))
		return fail("rdma_post_recv");
	if (rdma_connect(id, NULL))
		return fail("rdma_connect");
	for (i = 0; i < MESSAGES; i++)
		if (rdma_post_send(id, NULL, out, SIZE, out_mr, i == 1 ? IBV_SEND_SOLICITED : 0))
			return fail("rdma_post_send");
	for (i = 0; i < MESSAGES; i++)
		if (rdma_get_send_comp(id, &wc) < 1 || wc.status != IBV_WC_SUCCESS)
			return fail("sending");
	if (rdma_get_recv_comp(id, &wc) < 1 || wc.status != IBV_WC_SUCCESS || wc.byte_len != SIZE)
		return fail("receiving");
	rdma_disconnect(id);
	return 0;
}
