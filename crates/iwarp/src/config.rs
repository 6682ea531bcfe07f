//! Settings of one end of an iWARP connection.

use crate::mpa::frames::Rtr;
use base::Span;

/// When what a peer writes is put in its place.
///
/// RDMA Write completes nothing at the end that is written to. An application there that watches memory for what arrives sees
/// bytes when they are placed, in no order that it could rely on (RFC 5041, section 5.3; RFC 5040, section 5.5): only a message
/// behind them, or a read of its own, says that all of them are there. This says what it may see meanwhile.
///
/// Destinations of reads and receives are no matter of this: their contents are open until they complete, which takes right
/// CRCs, and until then long payloads may go there unchecked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Placement {
    /// With CRCs in use, nothing but bytes whose CRC was verified: "an MPA receiver MUST first verify the FPDU before passing
    /// the ULPDU to DDP" (RFC 5044, section 6), and DDP places what it was passed (RFC 5041, section 5.2). Records are read
    /// into scratch memory, several by one call, checked there and copied while they are warm. Without CRCs there is nothing
    /// to verify, and long payloads go straight to their place.
    #[default]
    Verified,
    /// Long payloads go straight to their place, checked on the way, as kernels and adapters do it. Whoever watches the memory
    /// may see bytes that were damaged on the way, before the CRC fails and the connection ends; where the header was
    /// damaged, in another range that the peer may write to.
    Early,
}

/// How a connection is to be set up and what it may take.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Config {
    /// Ask the peer for markers. They are of use only to receivers that see segments out of order; we check them.
    pub markers: bool,
    /// Ask for CRCs. Turning this off is an administrator's decision (RFC 5044, section 4.4), and the peer must agree.
    pub crc: bool,
    /// As initiator, use revision 2: negotiate how many reads may be outstanding (RFC 6581). A responder does as it is
    /// asked.
    pub enhanced: bool,
    /// Reads of the peer at a time; up to 16,382 and what the queue pair was created for.
    pub ird: u16,
    /// Own reads at a time; likewise.
    pub ord: u16,
    /// As initiator with `enhanced`: ask for the peer-to-peer model, in which the responder may send first.
    pub peer_to_peer: bool,
    /// The first messages of the peer-to-peer model that may be used.
    pub rtr: Rtr,
    /// When payload is put in its place.
    pub placement: Placement,
    /// Bytes of payload that a segment of the path carries (TCP's effective maximum segment size). Records are made to
    /// fit. Choose a multiple of four (`TCP_MAXSEG`), so that records fill segments exactly.
    pub emss: usize,
    /// How long the start-up may take, the application's answer included.
    pub startup_timeout: Span,
    /// How long a record may take from its first byte to its last.
    pub record_timeout: Span,
    /// How long a message that needs a receive may wait for one to be posted: meanwhile nothing is read from the stream, so
    /// that its flow control holds the peer back. None at all: the connection ends at once, as the RFCs describe it (RFC
    /// 5041, section 7.2), though they leave open when a record that came counts as received.
    pub receive_wait: Span,
    /// How long closing may take.
    pub close_timeout: Span,
    /// A pause between the reply and our first record, as initiator or with `speak_first`. Linux's siw can miss a record
    /// that comes right behind its reply.
    pub pause: Span,
    /// As responder: send without waiting for the initiator's first record, when it does not ask for the peer-to-peer model.
    /// RFC 5044 forbids it (section 7.1.2, rule 4): the initiator might take records for the reply. Kernels' drivers do it
    /// all the same, and applications whose server speaks first, `ucmatose` for one, wait for ever without it, as siw never
    /// asks for the peer-to-peer model.
    pub speak_first: bool,
    /// The queue pair is one whose state its application changes: it is not made ready to send when the connection is established,
    /// and stays as it is when the connection closes in order.
    pub foreign_qp: bool,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            markers: false,
            crc: true,
            enhanced: true,
            ird: 16,
            ord: 16,
            peer_to_peer: false,
            rtr: Rtr::ALL,
            placement: Placement::Verified,
            emss: 1448,
            startup_timeout: Span::from_secs(10),
            record_timeout: Span::from_secs(60),
            receive_wait: Span::ZERO,
            close_timeout: Span::from_secs(10),
            pause: Span::ZERO,
            speak_first: false,
            foreign_qp: false,
        }
    }
}
