//! fred alone, the client below lockhound: it runs on a thread of its own and is asked from the
//! caller's task. A pair is the two scripts and four thread changes, without a lock library.

use std::time::{Duration, Instant};

use fred::clients::Client;
use fred::interfaces::ClientLike;
use fred::types::config::{Config, ConnectionConfig, PerformanceConfig, TcpConfig};
use fred::types::{ClusterHash, CustomCommand, Resp3Frame, RespVersion, Value};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use crate::Failure;
use crate::contender::{ACQUIRE, LEASE, OWNER, RELEASE, clock, mark};
use crate::laps::Laps;
use crate::server::Server;

/// A client and the thread that drives it, which ends with the bench.
#[derive(Clone)]
pub(crate) struct Alone {
    engine: Handle,
    client: Client,
    acquire: Value,
    release: Value,
}

impl Alone {
    /// Connects a client, configured as the library's `node/client.rs` does it as far as that
    /// matters for speed.
    pub(crate) async fn connect(server: &Server) -> Result<Self, Failure> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let engine = runtime.handle().clone();
        std::thread::spawn(move || runtime.block_on(std::future::pending::<()>()));
        let mut config = Config::from_url(&server.url())?;
        config.version = RespVersion::RESP2;
        let performance = PerformanceConfig {
            default_command_timeout: Duration::from_secs(3),
            ..Default::default()
        };
        let tcp = TcpConfig {
            nodelay: Some(true),
            ..TcpConfig::default()
        };
        let connection = ConnectionConfig {
            max_command_attempts: 1,
            tcp,
            ..ConnectionConfig::default()
        };
        let client = Client::new(config, Some(performance), Some(connection), None);
        let mut alone = Self {
            engine,
            client,
            acquire: Value::Null,
            release: Value::Null,
        };
        let connecting = alone.client.clone();
        alone
            .on_engine(async move { connecting.init().await.map(|_| Resp3Frame::Null) })
            .await?;

        let mut socket = server.connect()?;
        alone.acquire = Value::Bytes(socket.load(&ACQUIRE)?.into());
        alone.release = Value::Bytes(socket.load(RELEASE)?.into());
        Ok(alone)
    }

    async fn on_engine(
        &self,
        work: impl Future<Output = Result<Resp3Frame, fred::error::Error>> + Send + 'static,
    ) -> Result<Resp3Frame, Failure> {
        let (reply, answer) = oneshot::channel();
        self.engine.spawn(async move { reply.send(work.await) });
        Ok(answer.await??)
    }

    async fn evalsha(&self, words: Vec<Value>) -> Result<Resp3Frame, Failure> {
        let client = self.client.clone();
        self.on_engine(async move { client.custom_raw(command("EVALSHA"), words).await })
            .await
    }

    pub(crate) async fn pairs(self, key: String, slot: Duration) -> Result<Laps, Failure> {
        let lease_ms: Value = LEASE.as_millis().to_string().into();
        let names: [Value; 3] = [
            key.clone().into(),
            mark(&key).into(),
            format!("redisson_lock__channel:{{{key}}}").into(),
        ];
        let mut laps = Laps::start();
        while let Some(asked) = laps.next(slot) {
            let [key, mark, channel] = names.clone();
            let field: Value = format!("{OWNER}:{}", laps.pairs()).into();
            let (acquire, release, clock) =
                (self.acquire.clone(), self.release.clone(), clock(1).into());
            let words = vec![
                acquire,
                2.into(),
                key.clone(),
                mark,
                lease_ms.clone(),
                field.clone(),
                clock,
            ];
            let granted = self.evalsha(words).await?;
            let yes = |data: &[Resp3Frame]| matches!(data[0], Resp3Frame::Number { data: 1, .. });
            if !matches!(&granted, Resp3Frame::Array { data, .. } if yes(data)) {
                return Err(format!("the server answered {granted:?}").into());
            }
            let locked = Instant::now();
            let released = self
                .evalsha(vec![release, 2.into(), key, channel, field])
                .await?;
            if !matches!(released, Resp3Frame::Number { data: 0, .. }) {
                return Err(format!("the server answered {released:?}").into());
            }
            laps.note(asked, locked);
        }
        Ok(laps)
    }
}

fn command(name: &'static str) -> CustomCommand {
    CustomCommand::new_static(name, ClusterHash::FirstKey, false)
}
