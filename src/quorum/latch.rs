//! Latches, each of which is on one server.

use super::Quorum;
use crate::error::Error;
use crate::op::Op;

impl Quorum {
    /// Asks the only server.
    ///
    /// # Errors
    /// [`Error::Unavailable`], or the refusal of the server.
    pub(crate) async fn ask_one<O>(&self, op: O) -> Result<O::Output, Error>
    where
        O: Op<Output: Default + 'static> + Send + 'static,
    {
        let answers = self.hear_all(op).await?;
        Ok(answers.into_iter().next().unwrap_or_default())
    }
}
