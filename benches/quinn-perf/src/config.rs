//! The settings of both ends: everything that lets quinn go fast.

use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Endpoint, EndpointConfig, ServerConfig, TransportConfig, VarInt, congestion};
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{DigitallySignedStruct, SignatureScheme};

use crate::{Control, MAX_STREAMS, PathOptions};

const ALPN: &[u8] = b"quinn-perf";
/// The name in the certificate.
pub const SERVER_NAME: &str = "quinn-perf";
/// Bytes that are written at a time.
pub const PIECE: usize = 1 << 20;

/// Memory that is there: each page of it was written.
pub fn region(options: &PathOptions) -> Vec<u8> {
    vec![0x5a; usize::try_from(options.region).map_or(PIECE, |n| n * PIECE)]
}
/// A connection that hears nothing for so long is over.
const IDLE: Duration = Duration::from_secs(30);
const UDP_HEADER: u64 = 8;

/// Headers below QUIC: IP without options, and UDP.
fn ip_and_udp(address: &SocketAddr) -> u64 {
    UDP_HEADER + if address.is_ipv4() { 20 } else { 40 }
}

/// A new endpoint on `local`, with socket buffers that hold a window.
pub fn endpoint(local: SocketAddr, path: &PathOptions, server: Option<ServerConfig>) -> Result<Endpoint> {
    let socket = UdpSocket::bind(local).with_context(|| format!("cannot bind to {local}"))?;
    let buffer = usize::try_from(path.window << 20)?;
    let options = socket2::SockRef::from(&socket);
    // The kernel gives at most net.core.{r,w}mem_max, silently.
    options.set_recv_buffer_size(buffer).context("cannot set the receive buffer")?;
    options.set_send_buffer_size(buffer).context("cannot set the send buffer")?;
    let runtime = Arc::new(quinn::TokioRuntime);
    let mut config = EndpointConfig::default();
    config.max_udp_payload_size(u16::try_from(path.mtu - ip_and_udp(&local))?)?;
    Ok(Endpoint::new(config, server, socket, runtime)?)
}

/// Windows, packet size and congestion control. Segmentation offload is quinn's default, said here to be sure.
fn transport(path: &PathOptions, address: &SocketAddr) -> Result<Arc<TransportConfig>> {
    let window = path.window << 20;
    let payload = u16::try_from(path.mtu - ip_and_udp(address))?;
    let mut config = TransportConfig::default();
    config
        .stream_receive_window(VarInt::from_u64(window)?)
        .receive_window(VarInt::from_u64(window)?)
        .send_window(window)
        .max_concurrent_uni_streams(VarInt::from_u64(MAX_STREAMS)?)
        .initial_mtu(payload)
        .min_mtu(payload)
        .mtu_discovery_config(None)
        .enable_segmentation_offload(true)
        .max_idle_timeout(Some(IDLE.try_into()?));
    let factory: Arc<dyn congestion::ControllerFactory + Send + Sync> = match path.cc {
        Control::Cubic => Arc::new(congestion::CubicConfig::default()),
        Control::Bbr => Arc::new(congestion::BbrConfig::default()),
        Control::Newreno => Arc::new(congestion::NewRenoConfig::default()),
    };
    config.congestion_controller_factory(factory);
    Ok(Arc::new(config))
}

/// The provider with the cipher that is fastest with ring, alone.
fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::ring::default_provider();
    provider.cipher_suites.retain(|suite| suite.suite() == rustls::CipherSuite::TLS13_AES_128_GCM_SHA256);
    Arc::new(provider)
}

/// A server's settings, with a certificate made now.
pub fn server(path: &PathOptions, local: &SocketAddr) -> Result<ServerConfig> {
    let made = rcgen::generate_simple_self_signed(vec![SERVER_NAME.to_owned()])?;
    let key = PrivateKeyDer::Pkcs8(made.signing_key.serialize_der().into());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![made.cert.der().clone()], key)?;
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(transport(path, local)?);
    Ok(config)
}

/// A client's settings.
pub fn client(path: &PathOptions, server: &SocketAddr) -> Result<ClientConfig> {
    let provider = provider();
    let mut tls = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(AnyCertificate(provider)))
        .with_no_client_auth();
    tls.alpn_protocols = vec![ALPN.to_vec()];
    let mut config = ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(transport(path, server)?);
    Ok(config)
}

/// Takes any certificate: a benchmark has nothing to protect. Signatures are checked, since that is part of the work.
#[derive(Debug)]
struct AnyCertificate(Arc<CryptoProvider>);

impl ServerCertVerifier for AnyCertificate {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls12_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        rustls::crypto::verify_tls13_signature(message, cert, dss, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
